//! Requests as the proxies of Istio and of Linkerd count them, in Prometheus' text format.
//!
//! Names and labels are those of Istio's standard metrics and of Linkerd's proxy metrics.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds in milliseconds.
const BUCKETS: [u32; 8] = [1, 5, 10, 50, 100, 500, 1_000, 10_000];

#[derive(Default)]
pub struct Counts(Mutex<BTreeMap<Labels, Requests>>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    namespace: String,
    workload: String,
    status: u16,
}

#[derive(Default)]
struct Requests {
    count: u64,
    /// Cumulative, as in the format.
    buckets: [u64; BUCKETS.len()],
}

impl Counts {
    pub fn add(&self, namespace: &str, workload: &str, status: u16, took: Duration) {
        let labels = Labels { namespace: namespace.to_owned(), workload: workload.to_owned(), status };
        let mut counts = self.0.lock();
        let requests = counts.entry(labels).or_default();
        requests.count += 1;
        for (bucket, bound) in requests.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(took <= Duration::from_millis(bound.into()));
        }
    }

    pub fn page(&self) -> String {
        let mut page = String::new();
        for (Labels { namespace, workload, status }, requests) in &*self.0.lock() {
            let class = if *status < 500 { "success" } else { "failure" };
            let linkerd = format!(
                r#"namespace="{namespace}",deployment="{workload}",classification="{class}",direction="inbound",status_code="{status}""#
            );
            requests.write(&mut page, ("response_total", "response_latency_ms"), &linkerd);
            for reporter in ["source", "destination"] {
                let istio = format!(
                    r#"reporter="{reporter}",destination_workload_namespace="{namespace}",destination_workload="{workload}",response_code="{status}""#
                );
                let names = ("istio_requests_total", "istio_request_duration_milliseconds");
                requests.write(&mut page, names, &istio);
            }
        }
        page
    }
}

impl Requests {
    fn write(&self, page: &mut String, (counter, histogram): (&str, &str), labels: &str) {
        let _ = writeln!(page, "{counter}{{{labels}}} {}", self.count);
        for (count, bound) in self.buckets.iter().zip(BUCKETS) {
            let _ = writeln!(page, r#"{histogram}_bucket{{{labels},le="{bound}"}} {count}"#);
        }
        let _ = writeln!(page, r#"{histogram}_bucket{{{labels},le="+Inf"}} {}"#, self.count);
    }
}
