//! The in-process API, on a thread of its own: it outlives the test that
//! started it, and with it that test's runtime.

use serin::local::{Local, Options};

use super::{Cluster, fresh_folder};

pub async fn start() -> Result<Cluster, String> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
        runtime.block_on(async {
            let local = Local::new(Options::default());
            let _controllers = local.start_controllers();
            let folder = fresh_folder("local");
            match local.serve(([127, 0, 0, 1], 0).into()).await {
                Err(error) => _ = tell.send(Err(error.to_string())),
                Ok(serving) => {
                    let written = serving.write_kubeconfig(&folder.join("kubeconfig"));
                    let _ = tell.send(written.map(|()| folder).map_err(|error| error.to_string()));
                    std::future::pending::<()>().await;
                }
            }
        });
    });
    let folder = told.await.map_err(|_| "the local server's thread ended".to_owned())??;
    Ok(Cluster { folder, children: Vec::new() })
}
