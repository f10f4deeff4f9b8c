//! Coloured text, and a region of the terminal that is redrawn. Plain ANSI
//! escape codes.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

/// The meaning of a piece of text, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
    Primary,
    Canary,
}

/// One line, in pieces.
pub type Line = Vec<(Tone, String)>;

pub fn plain(text: impl Into<String>) -> Line {
    vec![(Tone::Plain, text.into())]
}

/// The lower part of a terminal. Its cursor is hidden until this is dropped.
pub struct Terminal {
    colours: bool,
    /// Lines that the next `draw` replaces.
    drawn: usize,
}

impl Terminal {
    /// None if stdout cannot be redrawn: a file, a pipe.
    pub fn open() -> Option<Self> {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        if dumb || !std::io::stdout().is_terminal() {
            return None;
        }
        print!("\x1b[?25l");
        Some(Self { colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()), drawn: 0 })
    }

    pub fn colours(&self) -> bool {
        self.colours
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size();
        size.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()))
    }

    /// Replaces the lines of the previous `draw`.
    pub fn draw(&mut self, lines: &[Line]) {
        let (width, height) = self.size();
        // Lines beyond the height could not be redrawn.
        let lines = &lines[..lines.len().min(height.saturating_sub(1))];
        // Mode 2026: terminals that support it show the frame at once.
        let mut text = String::from("\x1b[?2026h\r");
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in lines {
            text.push_str(&paint(line, width, self.colours));
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J\x1b[?2026l");
        self.drawn = lines.len();
        print(&text);
    }

    /// The drawn lines stay; the next `draw` begins below them.
    pub fn detach(&mut self) {
        self.drawn = 0;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Without the ^C that the terminal echoed below the frame.
        print("\r\x1b[K\x1b[?25h");
    }
}

/// Nobody reads the output any more, as after `| head`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
pub struct ReaderGone;

static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Prints what can be printed; [`check_reader`] reports a closed pipe.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if printed.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
        READER_GONE.store(true, Ordering::Relaxed);
    }
}

/// Fails once the pipe that is printed to was closed.
pub fn check_reader() -> Result<(), ReaderGone> {
    match READER_GONE.load(Ordering::Relaxed) {
        true => Err(ReaderGone),
        false => Ok(()),
    }
}

/// At most `width` columns of a line; every character is one wide.
pub fn paint(line: &Line, width: usize, colours: bool) -> String {
    let (mut text, mut columns) = (String::new(), width);
    for (tone, piece) in line {
        let fits: String = piece.chars().take(columns).collect();
        columns -= fits.chars().count();
        match ansi_code(*tone).filter(|_| colours) {
            Some(code) => text.push_str(&format!("\x1b[{code}m{fits}\x1b[0m")),
            None => text.push_str(&fits),
        }
    }
    text
}

fn ansi_code(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Bold => Some("1"),
        Tone::Dim => Some("2"),
        Tone::Good => Some("32"),
        Tone::Bad => Some("1;31"),
        Tone::Primary => Some("34"),
        Tone::Canary => Some("33"),
    }
}

/// Breaks a sentence into lines of at most `width` columns.
pub fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let last = lines.len() - 1;
        let used = lines[last].chars().count();
        if used == 0 {
            lines[last].push_str(word);
        } else if used + 1 + word.chars().count() <= width {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_its_visible_columns() {
        let line = vec![(Tone::Good, "██".to_owned()), (Tone::Plain, "abc".to_owned())];
        assert_eq!(paint(&line, 3, false), "██a");
        assert_eq!(paint(&line, 3, true), "\x1b[32m██\x1b[0ma");
    }

    #[test]
    fn sentences_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensibilities", 5), ["incomprehensibilities"]);
    }
}
