//! Processes and folders that cannot outlive us.
//!
//! A shell watches over each: it reads a pipe that only we hold open. When we
//! end, for any reason, the kernel closes the pipe, and the shell kills the
//! process or removes the folder. It leads a process group of its own, so that
//! a Ctrl-C in the terminal does not reach it.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Child {
    name: String,
    supervisor: std::process::Child,
    log: PathBuf,
}

/// `$1` is the log, the rest the program.
///
/// The program reads nothing: a background job's input is /dev/null, which is
/// why the pipe is handed on as descriptor 3. When the program ends on its own
/// the shell ends too.
const SUPERVISE: &str = r#"
log=$1; shift
exec 3<&0
"$@" >"$log" 2>&1 3<&- &
child=$!
echo "$child" >"$log.process"
{ read -r _; kill -9 "$child"; } <&3 2>/dev/null &
wait "$child"
kill $! 2>/dev/null
"#;

impl Child {
    /// Starts `program` in `folder`, where a log keeps what it prints.
    pub fn start(
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Child {
        Self::start_with([], folder, program, arguments)
    }

    /// The same with more in its environment.
    pub fn start_with<const N: usize>(
        environment: [(&str, &str); N],
        folder: &Path,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Child {
        let name = program.file_name().expect("a program has a name").to_string_lossy().into_owned();
        let log = folder.join(format!("{name}.log"));
        let mut shell = shell(SUPERVISE);
        shell.args([&log, program]).args(arguments).current_dir(folder).envs(environment);
        Child { name, supervisor: spawn(shell), log }
    }

    /// Its process id, once it runs.
    pub fn process(&self) -> Option<u32> {
        let written = std::fs::read_to_string(self.log.with_extension("log.process")).ok()?;
        written.trim().parse().ok()
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.supervisor.try_wait(), Ok(None))
    }

    /// The end of its output, for a failure message.
    pub fn tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(15)..];
        format!("the last lines of {} ({}):\n{}", self.name, self.log.display(), last.join("\n"))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        end(&mut self.supervisor);
    }
}

/// A new folder of our own among the temporary files.
pub struct Folder {
    path: PathBuf,
    supervisor: std::process::Child,
}

/// `$1` is the folder. Processes that work in it die at the same moment, and may
/// still write for an instant.
const REMOVE: &str = r#"read -r _; until rm -rf "$1"; do sleep 0.1; done"#;

impl Folder {
    pub fn new(name: &str) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("serin-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut shell = shell(REMOVE);
        shell.arg(&path);
        Folder { supervisor: spawn(shell), path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    pub fn write(&self, file: &str, text: &str) {
        let path = self.join(file);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        end(&mut self.supervisor);
    }
}

fn shell(script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]);
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    shell
}

fn spawn(mut shell: Command) -> std::process::Child {
    shell.spawn().unwrap_or_else(|error| panic!("start sh: {error}"))
}

/// Closes the pipe and waits until the shell has done its duty.
fn end(supervisor: &mut std::process::Child) {
    drop(supervisor.stdin.take());
    let _ = supervisor.wait();
}
