//! Runs the program on a pseudo-terminal of its own, or without one.

use std::fmt;
use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::world::World;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_serin");

/// Enough for a machine that also compiles.
const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy)]
pub enum Screen {
    Columns(u16),
    /// Redirected: no terminal.
    File,
}

impl fmt::Display for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Columns(columns) => write!(f, "{columns} columns"),
            Self::File => f.write_str("no terminal"),
        }
    }
}

/// What is shown, with the exit code if it is not 0. The words before the command may be
/// `@down`, `@none` or `@guest`: see [`World::kubeconfig`].
pub async fn run(world: &World, line: &str, screen: Screen) -> String {
    let (kubeconfig, line) = match line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
        Some((name, line)) => (world.kubeconfig(name), line),
        None => (world.kubeconfig("admin"), line),
    };
    let mut command = std::process::Command::new(PROGRAM);
    command.args(line.split_whitespace()).current_dir(world.folder()).env_clear();
    command.env("KUBECONFIG", kubeconfig).env("HOME", world.folder()).env("TERM", "xterm-256color");
    let running = tokio::task::spawn_blocking(move || match screen {
        Screen::Columns(columns) => on_terminal(command, columns),
        Screen::File => {
            let output = command.stdin(Stdio::null()).output().expect("it runs");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout) + &text(&output.stderr), output.status.code())
        }
    });
    let (text, code) = tokio::time::timeout(TIMEOUT, running).await.expect("it ends").expect("it ran");
    match code {
        Some(0) => text,
        code => format!("{text}[exit {}]\n", code.unwrap_or(-1)),
    }
}

fn on_terminal(mut command: std::process::Command, columns: u16) -> (String, Option<i32>) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).expect("granted");
    unlockpt(&ours).expect("unlocked");
    let name = ptsname(&ours, Vec::new()).expect("its name").into_string().expect("text");
    let theirs = std::fs::OpenOptions::new().read(true).write(true).open(name).expect("the other end");
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).expect("a size");
    let again = || Stdio::from(theirs.try_clone().expect("a descriptor"));
    let mut child = command.stdin(again()).stdout(again()).stderr(again()).spawn().expect("it runs");
    // Only the child's ends are left: the last of them closes the terminal.
    drop((command, theirs));
    let (mut ours, mut shown) = (std::fs::File::from(ours), Vec::new());
    let mut part = [0; 4096];
    // EIO at the end.
    while let Ok(read) = ours.read(&mut part)
        && read > 0
    {
        shown.extend_from_slice(&part[..read]);
    }
    let code = child.wait().expect("it ended").code();
    (String::from_utf8_lossy(&shown).replace("\r\n", "\n"), code)
}
