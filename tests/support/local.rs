//! `kube_local` with its controllers, on a thread of its own: it outlives the
//! test that started it, and with it that test's runtime.

use std::path::PathBuf;

use kube_local::{ApiServer, Options, controllers};

use super::{Cluster, Folder, NODE};

pub async fn start() -> Result<Cluster, String> {
    start_in(Folder::new("local"), |_| Ok(ApiServer::new(Options::default()))).await
}

pub async fn start_durable() -> Result<Cluster, String> {
    let open = |file: PathBuf| {
        ApiServer::open(&file, Options::default()).map_err(|error| format!("{}: {error}", file.display()))
    };
    start_in(Folder::new("durable"), open).await
}

async fn start_in(
    folder: Folder,
    open: impl FnOnce(PathBuf) -> Result<ApiServer, String> + Send + 'static,
) -> Result<Cluster, String> {
    serin::tls::install_crypto_provider();
    let file = folder.join("state.redb");
    let (send, started) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
        runtime.block_on(async {
            let local = match open(file) {
                Ok(local) => local,
                Err(error) => {
                    let _ = send.send(Err(error));
                    return;
                }
            };
            let options = controllers::Options { clock: local.clock(), nodes: vec![NODE.to_owned()] };
            tokio::spawn(controllers::run(local.fault_exempt_client(), options));
            match local.serve(([127, 0, 0, 1], 0).into()).await {
                Err(error) => _ = send.send(Err(error.to_string())),
                Ok(serving) => {
                    let _ = send.send(Ok(serving.kubeconfig()));
                    std::future::pending::<()>().await;
                }
            }
        });
    });
    let kubeconfig = started.await.map_err(|_| "the local server's thread ended".to_owned())??;
    folder.write("kubeconfig", &kubeconfig);
    Ok(Cluster { children: Vec::new(), folder })
}
