//! `serin demo`, as a script runs it.

use std::process::Command;

use serde_json::Value;

fn demo(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_serin")).arg("demo").args(arguments).output().expect("run serin")
}

#[test]
fn the_healthy_version_is_promoted_and_the_others_are_rolled_back() {
    let output = demo(&["--output", "json"]);
    let stdout = String::from_utf8(output.stdout).expect("text");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let releases: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let ends: Vec<_> = releases.iter().map(|release| (&release["release"], &release["outcome"])).collect();
    assert_eq!(
        serde_json::json!(ends),
        serde_json::json!([["v2", "promoted"], ["v3", "rolledBack"], ["v4", "rolledBack"]]),
        "{stdout}{stderr}"
    );
    assert!(output.status.success(), "{stderr}");

    let weights = |release: &Value| -> Vec<f64> {
        let steps = release["steps"].as_array().expect("steps");
        steps.iter().map(|step| step["weight"].as_f64().expect("a weight")).collect()
    };
    let plan = [5.0, 10.0, 25.0, 50.0];
    assert_eq!(weights(&releases[0]), plan, "{stdout}");
    // Not one, though the primary's pods are replaced under half of the traffic.
    assert_eq!(releases[0]["failedRequests"], 0, "{stdout}");
    for (release, metric) in [(&releases[1], "request-success-rate"), (&releases[2], "request-duration")] {
        assert!(plan.starts_with(&weights(release)), "{stdout}");
        assert!(release["reason"].as_str().is_some_and(|reason| reason.contains(metric)), "{stdout}");
        assert!(release["badRequests"].as_u64().is_some_and(|bad| bad > 0), "{stdout}");
    }
}

#[test]
fn unsupported_arguments_are_refused_before_anything_runs() {
    let refused = |arguments: &[&str], why: &str| {
        let output = demo(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(why), "{stderr}");
        assert!(output.stdout.is_empty());
    };
    refused(&["--serve", "0.0.0.0:0"], "not a loopback address");
    refused(&["--app-image", "shop:v9"], "write shop");
    refused(&["-f", "no-such-file.yaml"], "no-such-file.yaml");
}
