//! `kube_local` with its controllers, on a thread of its own: it outlives the
//! test that started it, and with it that test's runtime.

use kube_local::{ApiServer, Options, controllers};

use super::{Cluster, Folder, NODE};

pub async fn start() -> Result<Cluster, String> {
    serin::tls::install_crypto_provider();
    let (send, started) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
        runtime.block_on(async {
            let local = ApiServer::new(Options::default());
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
    let folder = Folder::new("local");
    folder.write("kubeconfig", &kubeconfig);
    Ok(Cluster { children: Vec::new(), folder })
}
