//! The `process_*` series, from `/proc`; none where there is no `/proc`.

use super::exposition::{Exposition, Kind};

/// The unit of time in `/proc`; 100 on every supported Linux.
const TICKS_PER_SECOND: f64 = 100.0;

pub fn write(text: &mut Exposition) {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let stat = Stat::parse(&read("/proc/self/stat"));
    if let Some(Stat { cpu_seconds, .. }) = stat {
        text.family("process_cpu_seconds", Kind::Counter, "User and system CPU time, in seconds.")
            .put(&[], cpu_seconds);
    }
    if let (Some(Stat { started_after_boot, .. }), Some(boot_time)) = (stat, boot_time(&read("/proc/stat"))) {
        text.family("process_start_time_seconds", Kind::Gauge, "Start time, in seconds since 1970.")
            .put(&[], boot_time + started_after_boot);
    }
    if let Some(bytes) = resident_bytes(&read("/proc/self/status")) {
        text.family("process_resident_memory_bytes", Kind::Gauge, "Resident memory, in bytes.")
            .put(&[], bytes);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    started_after_boot: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may
        // contain parentheses and spaces.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<f64> =
            rest.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        // Field 4 of proc(5) is the first of these.
        let field = |number: usize| fields.get(number - 4).map(|ticks| ticks / TICKS_PER_SECOND);
        Some(Self { cpu_seconds: field(14)? + field(15)?, started_after_boot: field(22)? })
    }
}

fn boot_time(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn resident_bytes(text: &str) -> Option<f64> {
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kilobytes.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "4242 (a b) c) S 1 2 3 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 123456 1000 200 1 2 3\n";
        assert_eq!(Stat::parse(stat), Some(Stat { cpu_seconds: 3.0, started_after_boot: 1234.56 }));
        assert_eq!(Stat::parse("nonsense"), None);
        assert_eq!(boot_time("cpu  1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000.0));
        assert_eq!(resident_bytes("Name:\tserin\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
    }
}
