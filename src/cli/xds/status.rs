//! `serin xds status`: the proxies of a running controller, by its API.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::Value;

use crate::cli::connect::ClusterArgs;
use crate::cli::inventory::table::{Style, Tone, plain, table, toned};

/// Of the request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Of the answer.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// List the Envoys that are connected to a replica of the controller
///
/// SYNCED: the proxy uses what it was sent last. STALE: it has not answered yet.
/// NACK: it refused it, in its own words, and goes on with what it had before. The
/// API of `serin run --api-listen` answers; it needs a token with the right to
/// list meshroutes in all namespaces. Each replica knows its own proxies:
///
///     kubectl port-forward -n serin pod/serin-0 8443
///     serin xds status --server http://127.0.0.1:8443
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// URL of the API of a replica
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8443")]
    server: String,

    /// File with a token of the cluster; - reads it from standard input [default: the
    /// token of the kubeconfig's user]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Certificates that the one of the server is checked with, PEM [default: those of
    /// the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    crate::cli::runtime()?.block_on(async {
        let output = args.output;
        let found = request(args).await?;
        match output {
            Output::Json => println!("{found:#}"),
            Output::Table => {
                print!("{}", shown(&found, Style { colours: crate::cli::colours(), wide: false }))
            }
        }
        Ok(())
    })
}

async fn request(args: Args) -> anyhow::Result<Value> {
    let url: reqwest::Url =
        args.server.parse().with_context(|| format!("--server: {} is no URL", args.server))?;
    let loopback = url.host_str().is_some_and(|host| {
        host == "localhost"
            || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    });
    anyhow::ensure!(
        url.scheme() == "https" || loopback,
        "--server: a token must not be sent unencrypted; write https://, or use kubectl port-forward"
    );
    let token = token(args.token_file, &args.cluster)?;
    crate::tls::install_crypto_provider();
    let mut client = reqwest::Client::builder().timeout(TIMEOUT);
    if let Some(path) = args.ca {
        let pem = std::fs::read(&path).with_context(|| format!("--ca: read {}", path.display()))?;
        let bundle = reqwest::Certificate::from_pem_bundle(&pem);
        for certificate in bundle.with_context(|| format!("--ca: {}", path.display()))? {
            client = client.add_root_certificate(certificate);
        }
    }
    let page = url.join("/api/v1/xds/proxies").context("--server")?;
    let mut answer = client.build()?.get(page).bearer_auth(token).send().await.with_context(|| {
        format!("ask {}; is serin run --api-listen --xds-listen reachable there?", args.server)
    })?;
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        anyhow::ensure!(body.len() + chunk.len() <= MAX_ANSWER_BYTES, "the answer is too long");
        body.extend_from_slice(&chunk);
    }
    let found: Value = serde_json::from_slice(&body)
        .map_err(|_| anyhow::anyhow!("{} answered {status}, and no JSON: is it Serin's API?", args.server))?;
    match found["error"].as_str() {
        Some(error) => anyhow::bail!("{error}"),
        None if status.is_success() => Ok(found),
        None => anyhow::bail!("{} answered {status}", args.server),
    }
}

fn token(file: Option<PathBuf>, cluster: &ClusterArgs) -> anyhow::Result<String> {
    let read = match file {
        Some(path) if path.as_os_str() == "-" => {
            std::io::read_to_string(std::io::stdin()).context("read the token from standard input")?
        }
        Some(path) => std::fs::read_to_string(&path)
            .with_context(|| format!("--token-file: read {}", path.display()))?,
        None => kubeconfig_token(cluster)?,
    };
    let token = read.trim().to_owned();
    anyhow::ensure!(!token.is_empty(), "the token is empty");
    Ok(token)
}

/// A user without one, such as one with a certificate, makes one by `kubectl create
/// token`.
fn kubeconfig_token(cluster: &ClusterArgs) -> anyhow::Result<String> {
    let kubeconfig = cluster.read()?.context("there is no kubeconfig with a token; set --token-file")?;
    let wanted = cluster.context.clone().or_else(|| kubeconfig.current_context.clone()).unwrap_or_default();
    let contexts = kubeconfig.contexts.into_iter().find(|context| context.name == wanted);
    let user = contexts.and_then(|context| context.context?.user);
    let users = kubeconfig.auth_infos.into_iter().find(|info| Some(&info.name) == user.as_ref());
    let info = users.and_then(|user| user.auth_info).unwrap_or_default();
    let written = serde_json::to_value(&info)?["token"].as_str().map(str::to_owned);
    let in_file = info.token_file.and_then(|path| std::fs::read_to_string(path).ok());
    written.or(in_file).context(
        "the kubeconfig's user has no token; make one, such as `kubectl create token NAME`, and pipe it to --token-file -",
    )
}

fn shown(found: &Value, style: Style) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let proxies = found["proxies"].as_array().map(Vec::as_slice).unwrap_or_default();
    if proxies.is_empty() {
        return format!("No proxy is connected to {}.\n", text(&found["replica"]));
    }
    let mut refusals = String::new();
    let row = |proxy: &Value| {
        let types = proxy["types"].as_array().map(Vec::as_slice).unwrap_or_default();
        let status = |name: &str| {
            let status =
                types.iter().find(|of| of["name"] == name).map(|of| text(&of["status"]).to_uppercase());
            let status = status.unwrap_or_default();
            let tone = match status.as_str() {
                "SYNCED" => Tone::Good,
                "NACK" => Tone::Bad,
                _ => Tone::Plain,
            };
            toned(status, tone)
        };
        for of in types {
            if let Some(error) = of["error"].as_str() {
                let line = format!("{} refused {}: {error}\n", text(&proxy["node"]), text(&of["name"]));
                refusals.push_str(&line);
            }
        }
        let [node, identity, sent, since] =
            ["node", "identity", "bytesSent", "connected"].map(|field| plain(text(&proxy[field])));
        vec![node, identity, status("CDS"), status("EDS"), status("LDS"), status("RDS"), sent, since]
    };
    let rows = proxies.iter().map(row).collect();
    let headers = ["NODE", "IDENTITY", "CDS", "EDS", "LDS", "RDS", "SENT", "CONNECTED"];
    table(&headers, rows, style) + &refusals
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_shown_in_the_words_of_the_proxy() {
        let types = json!([
            {"name": "CDS", "status": "synced"}, {"name": "RDS", "status": "nack", "error": "invalid regex"},
        ]);
        let found = json!({"replica": "serin-0", "proxies": [
            {"node": "edge-1", "identity": "anonymous", "connected": "2026-11-19T06:00:00Z", "bytesSent": 1200, "types": types},
        ]});
        let shown = shown(&found, Style::default());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["edge-1", "anonymous", "SYNCED", "-", "-", "NACK", "1200", "2026-11-19T06:00:00Z"]
        );
        assert_eq!(lines[2], "edge-1 refused RDS: invalid regex");
    }
}
