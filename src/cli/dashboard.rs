//! `serin dashboard`: the page, for the user of the kubeconfig.
//!
//! The same API and page as those of `serin run --api-listen`, from this process: its own
//! watch of the Canaries, with the rights of the kubeconfig. Other users of this machine, and
//! other sites in the browser, do not know the secret of the session, which is in the part of
//! the address that a browser never sends.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use super::connect::{ClusterArgs, Connection};
use crate::api::Canary;
use crate::controller::{HasMeta as _, NamespacedName, RawCanary};
use crate::discovery::{live::LiveInventory, watch};
use crate::server::{self, Access, BoardSources, BoundServer};
use crate::telemetry::LiveCanaries;

/// Open the dashboard: every Canary that you may see, as it changes, in a browser
///
///     serin dashboard                 on a free port of this machine
///     serin dashboard -n shop         if you may not list Canaries in all namespaces
///
/// It acts with the rights of your kubeconfig, and ends with Ctrl-C. Charts begin when it
/// does; `serin run --api-listen` serves the same page with the whole course of a release.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Namespace [default: all]
    #[arg(short, long)]
    namespace: Option<String>,

    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Print the address only
    #[arg(long)]
    no_open: bool,

    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The inventory is complete when nothing was added for this long.
const SETTLED: Duration = Duration::from_secs(1);

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.listen.ip().is_loopback(),
        "--listen {} is not a loopback address: the dashboard has your rights; \
         `serin run --api-listen` serves it to others, with a certificate and their own rights",
        args.listen
    );
    super::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let connection = args.cluster.connect().await?;
    let Connection { client, .. } = connection.clone();
    let canaries: Api<Canary> = match &args.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let listed = canaries.list_metadata(&ListParams::default().limit(1)).await;
    listed.map_err(|error| match (&error, &args.namespace) {
        (kube::Error::Api(status), None) if status.code == 403 => {
            anyhow::anyhow!("you may not list Canaries in all namespaces: name one with -n")
        }
        _ => connection.error("list Canaries", &error),
    })?;
    let server = BoundServer::bind(args.listen).await.context("--listen: choose a free address")?;
    let secret = secret()?;
    let (live, inventory) = (Arc::<LiveCanaries>::default(), LiveInventory::new("local"));
    let access = Access::of_session(client.clone(), &secret);
    let api = server::command_router(Arc::clone(&access), &[])
        .merge(server::board_router(BoardSources {
            access: Arc::clone(&access),
            live: Arc::clone(&live),
            cluster: connection.server().to_owned(),
            clock: Arc::new(Timestamp::now),
            inventory: true,
        }))
        .merge(server::inventory_router(access, Arc::clone(&inventory), None))
        .merge(server::dashboard::dashboard_router(None));
    let address = server.address;
    let _server = server.serve(server::dashboard::for_loopback(api, address.port()), None);
    let url = format!("http://{address}/#token={secret}");
    // In one write: who reads the address may close the pipe behind it.
    let lines = format!(
        "The dashboard is at {url}\n# It has your rights in {}. Ctrl-C ends it.\n",
        connection.server()
    );
    std::io::stdout().write_all(lines.as_bytes()).context("print the address")?;
    std::io::stdout().flush().context("print the address")?;
    let _opened = (!args.no_open && std::io::stdout().is_terminal()).then(|| Opener::open(&url)).flatten();
    tokio::select! {
        watched = watch_canaries(&client, args.namespace.as_deref(), &live) => watched,
        () = watch_inventory(client.clone(), inventory) => Ok(()),
        stop = tokio::signal::ctrl_c() => stop.context("wait for Ctrl-C"),
        () = super::wait_for_sigterm() => Ok(()),
    }
}

async fn watch_canaries(client: &Client, namespace: Option<&str>, live: &LiveCanaries) -> anyhow::Result<()> {
    let canaries: Api<RawCanary> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let mut events = std::pin::pin!(watcher(canaries, watcher::Config::default()).default_backoff());
    let mut listed = std::collections::BTreeSet::new();
    loop {
        match events.try_next().await {
            Ok(Some(Event::Init)) => listed.clear(),
            Ok(Some(Event::InitApply(canary))) => {
                let canary = Arc::new(canary.decode());
                listed.insert(NamespacedName::of(&*canary));
                live.apply(&canary, Timestamp::now());
            }
            Ok(Some(Event::InitDone)) => {
                live.retain(|name| listed.contains(name));
                live.set_complete();
            }
            Ok(Some(Event::Apply(canary))) => live.apply(&Arc::new(canary.decode()), Timestamp::now()),
            Ok(Some(Event::Delete(canary))) => {
                let metadata = canary.metadata();
                let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
                live.remove(&NamespacedName {
                    namespace: namespace.unwrap_or_default(),
                    name: name.unwrap_or_default(),
                });
            }
            Ok(None) => anyhow::bail!("the watch of Canaries ended"),
            Err(error) => {
                tracing::warn!("cannot watch Canaries: {}", crate::api_error::watch_error(&error).0)
            }
        }
    }
}

/// From the first request for it.
async fn watch_inventory(client: Client, inventory: Arc<LiveInventory>) {
    inventory.wanted().await;
    let settle = async {
        while timeout(SETTLED, inventory.changed()).await.is_ok() {}
        inventory.set_ready();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        watched = watch::watch(&client, &inventory) => {
            if let Err(error) = watched {
                tracing::warn!(%error, "cannot watch the inventory");
            }
            std::future::pending().await
        }
        () = settle => {}
    }
}

/// 256 random bits, as hexadecimal digits.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    let mut source = std::fs::File::open("/dev/urandom").context("open /dev/urandom")?;
    source.read_exact(&mut bytes).context("read /dev/urandom")?;
    let mut text = String::new();
    bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}"))?;
    Ok(text)
}

/// A file that leads a browser to the address. As an argument of the browser the address
/// would be visible to all users of the machine.
struct Opener(PathBuf);

impl Opener {
    /// None if there is no browser: the address is printed anyway.
    fn open(url: &str) -> Option<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = folder.join(format!("serin-dashboard-{}.html", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path).ok()?;
        let opener = Self(path);
        write!(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\">").ok()?;
        let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        let mut command = Command::new(program);
        command.arg(&opener.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok()?;
        Some(opener)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}
