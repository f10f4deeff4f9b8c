//! Serin's control plane beside a minimal one on go-control-plane (`testbed/go-control-plane`):
//! each in a process of its own, told the same changes over its standard input, with the same
//! real Envoy and the same 1,000 delta-ADS clients. It prints and asserts nothing; the machine
//! is shared and noisy, so read the ratios.
//!
//! `make bench-xds` runs it; with `PART=weight` or `PART=fleet` one half of it.

#[allow(dead_code, reason = "of the tests")]
#[path = "../../tests/xds/client.rs"]
mod client;
mod contender;
mod control_plane;
mod fleet;
#[path = "../../tests/support/mod.rs"]
mod support;
#[allow(dead_code, reason = "of the tests")]
#[path = "../../tests/xds/traffic.rs"]
mod traffic;
mod weight;

/// What the clients of the tests take from the tests.
mod plane {
    /// Of a response.
    pub const LIMIT: std::time::Duration = std::time::Duration::from_secs(120);
}

use std::time::Duration;

use contender::Contender;
use control_plane::Flags;

/// As in `main.rs` of `serin`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Services besides the one whose weights change. A node may name a thousand.
const SERVICES: [usize; 2] = [0, 999];

/// Under its first argument this program is Serin's contender.
pub const CONTROL_PLANE: &str = "control-plane";

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, flags)) if first == CONTROL_PLANE => {
            runtime.block_on(control_plane::run(Flags::parse(flags)));
        }
        _ => runtime.block_on(compare(&arguments)),
    }
}

async fn compare(arguments: &[String]) {
    serin::tls::install_crypto_provider();
    let is_wanted = |part: &str| {
        let mut parts = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        parts.peek().is_none() || parts.any(|wanted| wanted == part)
    };
    println!("load of the machine: {}", load());
    if is_wanted("weight") {
        compare_weights().await;
    }
    if is_wanted("fleet") {
        compare_fleets().await;
    }
    println!("\nload of the machine: {}", load());
}

async fn compare_weights() {
    println!("\nChange of a weight to the first response by it, through a real Envoy");
    println!("{:<26}{:>10}{:>10}{:>10}{:>10}", "", "services", "p50", "p90", "p99");
    for services in SERVICES {
        let mut medians = Vec::new();
        for contender in Contender::ALL {
            let delays = weight::measure(contender, services).await;
            let at = |share: f64| milliseconds(percentile(&delays, share));
            println!(
                "{:<26}{:>10}{:>10}{:>10}{:>10}",
                contender.name(),
                services + 1,
                at(0.5),
                at(0.9),
                at(0.99)
            );
            medians.push([percentile(&delays, 0.5), percentile(&delays, 0.99)]);
        }
        let [serin, other] = &medians[..] else { return };
        let ratio = |n: usize| serin[n].as_secs_f64() / other[n].as_secs_f64();
        println!("{:<36}{:>8.2} x{:>18.2} x", "  Serin / go-control-plane", ratio(0), ratio(1));
    }
}

async fn compare_fleets() {
    println!(
        "\n{} proxies, {} of which call the service whose weight changes",
        fleet::PROXIES,
        fleet::CONCERNED
    );
    println!("{:<52}{:>14}{:>18}{:>10}", "", "Serin", "go-control-plane", "ratio");
    let (serin, other) =
        (fleet::measure(Contender::Serin).await, fleet::measure(Contender::GoControlPlane).await);
    for (row, (serin, other)) in fleet::ROWS.iter().zip(serin.rows().into_iter().zip(other.rows())) {
        println!("{row:<52}{serin:>14.2}{other:>18.2}{:>9.2} x", serin / other);
    }
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{} on {cores} cores", text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    sorted.get(((sorted.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
