//! The dashboard with 1,000 Canaries, 100 of them moving, and 50 viewers: time to the first
//! paint in a real Chromium, the longest frame of a minute, and CPU and memory of the server
//! with and without viewers. `make bench-dashboard`. With a number of minutes as its argument
//! it goes on, and prints each minute what server and page hold (`make bench-dashboard SOAK=10`).

#[path = "../tests/dashboard/browser.rs"]
mod browser;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube_local::access::Identity;
use serde_json::json;
use serin::controller::CachedCanary;
use serin::server::{self, Access, BoardSources, BoundServer};
use serin::telemetry::LiveCanaries;
use tokio::time::{Instant, interval, sleep};

const CANARIES: usize = 1_000;
const MOVING: usize = 100;
const VIEWERS: usize = 50;
/// Tells the child process that it is the server.
const SERVE: &str = "SERIN_BENCH_DASHBOARD_SERVER";

fn main() {
    serin::tls::install_crypto_provider();
    if std::env::var_os(SERVE).is_some() {
        // As `serin run`.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(serve());
    } else {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(measure());
    }
}

/// Version `version` of a Canary; those that move change their weight and their numbers.
fn canary(number: usize, version: u64) -> Arc<CachedCanary> {
    let now = Timestamp::now();
    let moving = number < MOVING;
    let metrics = ["request-success-rate", "request-duration"].map(|name| {
        json!({
            "name": name, "verdict": "Pass", "reason": "No worse than the primary.", "at": now,
            "canary": 99.5, "primary": 99.6, "canaryCount": 2000, "primaryCount": 9000, "evidence": 1.2,
        })
    });
    let mut status = json!({
        "phase": if moving { "Progressing" } else { "Succeeded" }, "failedChecks": 0, "iterations": 0,
        "canaryWeight": if moving { version % 50 } else { 0 }, "releases": 3, "lastTransitionTime": now,
        "message": format!("Judging the canary at its weight for the {version}. time; all metrics pass."),
        "history": (0..10).map(|past| json!({
            "revision": format!("v1-{past}"), "outcome": "Promoted", "reason": "All steps passed.",
            "startedAt": now, "finishedAt": now, "highestWeight": 50,
        })).collect::<Vec<_>>(),
        "metrics": metrics,
    });
    if moving {
        status["release"] =
            json!({"revision": "v1-9", "trigger": "PodTemplate", "startedAt": now, "lastProgressAt": now});
        status["step"] = json!({"index": version % 5, "total": 5, "progress": "1/5", "startedAt": now});
        status["nextDeadline"] = json!({"at": now + Duration::from_secs(30), "reason": "the next check"});
    }
    let canary = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
        "metadata": {
            "name": format!("service-{number}"), "namespace": format!("team-{}", number % 40), "uid": number.to_string(),
            "resourceVersion": (version + 1).to_string(),
        },
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": format!("service-{number}")},
            "service": {"port": 80}, "analysis": {"stepWeights": [5, 10, 20, 30, 50]},
        },
        "status": status,
    });
    Arc::new(CachedCanary::Valid(Arc::new(serde_json::from_value(canary).expect("a Canary"))))
}

/// Each moving Canary changes once a second.
async fn serve() {
    let identity = Identity { user: "viewer".to_owned(), groups: vec!["system:masters".to_owned()] };
    let users = vec![("token".to_owned(), identity)];
    let cluster = kube_local::ApiServer::new(kube_local::Options { users, ..Default::default() });
    let live = Arc::<LiveCanaries>::default();
    let now = Timestamp::now;
    (0..CANARIES).for_each(|number| live.apply(&canary(number, 0), now()));
    live.set_complete();
    let access = Access::by_token(cluster.client(), Vec::new());
    let router = server::board_router(BoardSources {
        access,
        live: Arc::clone(&live),
        cluster: "bench".to_owned(),
        clock: Arc::new(now),
        inventory: false,
    });
    let bound = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port").for_viewers();
    let server = bound.serve(router.merge(server::dashboard::dashboard_router(None)), None);
    println!("{}", server.address);
    let mut ticks = interval(Duration::from_secs(1) / MOVING as u32);
    for version in 1_u64.. {
        for number in 0..MOVING {
            ticks.tick().await;
            live.apply(&canary(number, version), now());
        }
    }
}

/// CPU seconds and resident megabytes of a process.
fn usage(process: u32) -> (f64, f64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("/proc");
    let stat = read("stat");
    let fields: Vec<f64> = stat
        .rsplit_once(')')
        .expect("a name")
        .1
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let resident = read("status")
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    ((fields[10] + fields[11]) / 100.0, resident.expect("VmRSS") / 1024.0)
}

async fn cpu_share(process: u32, over: Duration) -> f64 {
    let (before, began) = (usage(process).0, Instant::now());
    sleep(over).await;
    100.0 * (usage(process).0 - before) / began.elapsed().as_secs_f64()
}

/// CPU time of the page's thread in the worst of many quarters of a second, in milliseconds: no
/// frame waited longer for the page itself, however busy the machine is.
async fn most_work(tab: &browser::Tab) -> f64 {
    tab.call("Performance.enable", json!({"timeDomain": "threadTicks"})).await;
    let (mut before, mut most) = (None, 0_f64);
    for _ in 0..200 {
        let metrics = tab.call("Performance.getMetrics", json!({})).await;
        let metrics = metrics["metrics"].as_array().expect("metrics");
        let spent = metrics.iter().find(|metric| metric["name"] == "TaskDuration").expect("TaskDuration");
        let spent = spent["value"].as_f64().expect("seconds");
        if let Some(before) = before.replace(spent) {
            most = most.max(1_000.0 * (spent - before));
        }
        sleep(Duration::from_millis(250)).await;
    }
    most
}

async fn measure() {
    let this = std::env::current_exe().expect("a path");
    let mut child = Command::new(this).env(SERVE, "1").stdout(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("an address");
    let (origin, process) = (format!("http://{}", line.trim()), child.id());
    sleep(Duration::from_secs(5)).await;
    let (alone, alone_memory) = (cpu_share(process, Duration::from_secs(20)).await, usage(process).1);
    println!("{CANARIES} Canaries, {MOVING} of them change once a second");
    println!("without viewers     {alone:5.1} % of a core, {alone_memory:5.1} MB");

    let viewers: Vec<_> = (0..VIEWERS)
        .map(|_| {
            let origin = origin.clone();
            tokio::spawn(async move {
                let client = reqwest::Client::builder().no_proxy().build().expect("a client");
                loop {
                    let request = client.get(format!("{origin}/api/v1/stream")).bearer_auth("token");
                    if let Ok(mut stream) = request.send().await {
                        while let Ok(Some(_)) = stream.chunk().await {}
                    }
                    sleep(Duration::from_millis(300)).await;
                }
            })
        })
        .collect();
    sleep(Duration::from_secs(5)).await;
    let with = cpu_share(process, Duration::from_secs(30)).await;
    let memory = usage(process).1;
    println!("with {VIEWERS} viewers     {with:5.1} % of a core, {memory:5.1} MB");
    println!("for the viewers     {:5.1} % of a core, {:5.1} MB", with - alone, memory - alone_memory);

    let browser = browser::Browser::start().await;
    let tab = browser.tab().await;
    tab.open(&format!("{origin}/#token=token")).await;
    tab.until("document.querySelectorAll('a.row').length >= 1").await;
    let paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null";
    tab.until(paint).await;
    println!("first paint         {:.0} ms", tab.eval(paint).await.as_f64().unwrap_or_default());
    tab.until("document.querySelectorAll('a.row').length === 1000").await;
    let frames = "new Promise((done) => { const times = []; let last = performance.now(); const began = last;
        const frame = (now) => { times.push(now - last); last = now; now - began < 60000 ? requestAnimationFrame(frame) : done(times); };
        requestAnimationFrame(frame); }).then((times) => { times.sort((a, b) => b - a); return [times.length, times[0], times[Math.floor(times.length / 100)]]; })";
    let (frames, most) = tokio::join!(tab.eval(frames), most_work(&tab));
    println!(
        "frames of a minute  {}, longest {:.0} ms, 99 % within {:.0} ms",
        frames[0],
        frames[1].as_f64().unwrap_or_default(),
        frames[2].as_f64().unwrap_or_default()
    );
    println!("the page's work     at most {most:.0} ms of CPU time in a quarter of a second");
    for minute in 1..=std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(0) {
        sleep(Duration::from_secs(60)).await;
        // What is garbage is not held.
        tab.call("HeapProfiler.collectGarbage", json!({})).await;
        let page = "[performance.memory.usedJSHeapSize / 1048576, document.querySelectorAll('*').length]";
        let page = tab.eval(page).await;
        let (heap, nodes) = (page[0].as_f64().unwrap_or_default(), &page[1]);
        println!(
            "after {minute:3} min       server {:5.1} MB, page {heap:4.1} MB, {nodes} elements",
            usage(process).1
        );
    }
    viewers.iter().for_each(|viewer| viewer.abort());
    let _ = child.kill();
    let _ = child.wait();
}
