//! A process that cannot outlive us.
//!
//! A shell stands between: it starts the program and reads a pipe that only we
//! hold open. When we end, by whatever cause, the kernel closes the pipe, and
//! the shell kills the program and removes its working folder. It leads a
//! process group of its own, so a Ctrl-C in the terminal does not reach it.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Child {
    name: String,
    supervisor: std::process::Child,
    log: PathBuf,
}

/// `$1` is the folder to remove, `$2` the log, the rest the program.
///
/// The program reads nothing: a background job's input is /dev/null, which is
/// why the pipe is handed on as descriptor 3. When the program ends on its own
/// the shell ends too, and leaves the folder to be looked at.
const SUPERVISE: &str = r#"
folder=$1 log=$2; shift 2
exec 3<&0
"$@" >"$log" 2>&1 3<&- &
child=$!
{ read -r _; : >"$log.over"; kill -9 "$child"; } <&3 2>/dev/null &
wait "$child"
if [ -e "$log.over" ] || [ ! -e "$log" ]; then rm -rf "$folder"; else kill $!; exit 1; fi
"#;

impl Child {
    /// Starts `program` with a log of its output in `folder`, which is removed
    /// when it ends.
    pub fn start(
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Child {
        let name = program.file_name().expect("a program has a name").to_string_lossy().into_owned();
        let log = folder.join(format!("{name}.log"));
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISE, "sh"])
            .args([folder, &log, program])
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name} under sh: {error}"));
        Child { name, supervisor, log }
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.supervisor.try_wait(), Ok(None))
    }

    /// The end of what it printed: what a person wants to see when it failed.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(15)..];
        format!("the last lines of {} ({}):\n{}", self.name, self.log.display(), last.join("\n"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}
