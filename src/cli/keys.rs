//! Single keys of a terminal, without Enter. The terminal is as before when this is
//! dropped.

use std::io::Read as _;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

pub(super) struct Keys {
    before: Termios,
    pressed: mpsc::Receiver<char>,
}

impl Keys {
    /// None if stdin is no terminal.
    pub fn open() -> Option<Self> {
        let stdin = rustix::stdio::stdin();
        let before = tcgetattr(stdin).ok()?;
        let mut single = before.clone();
        // Ctrl-C stays a signal.
        single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(stdin, OptionalActions::Now, &single).ok()?;
        let (keys, pressed) = mpsc::channel(16);
        // A read of stdin cannot be cancelled: the thread ends with the process.
        std::thread::spawn(move || {
            let mut byte = [0];
            while std::io::stdin().read(&mut byte).is_ok_and(|read| read > 0) {
                if keys.blocking_send(char::from(byte[0])).is_err() {
                    break;
                }
            }
        });
        Some(Self { before, pressed })
    }

    /// The next key; never, once stdin is closed.
    pub async fn next(&mut self) -> char {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
