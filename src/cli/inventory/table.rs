//! Aligned columns.

#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    pub colours: bool,
    pub wide: bool,
}

/// Meaning of a cell, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Dim,
    Good,
    Bad,
}

pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

pub fn plain(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), tone: Tone::Plain }
}

pub fn toned(text: impl Into<String>, tone: Tone) -> Cell {
    Cell { text: text.into(), tone }
}

/// Columns are as wide as their widest cell; the last is not padded. Empty cells are
/// dashes.
pub fn table(headers: &[&str], rows: Vec<Vec<Cell>>, style: Style) -> String {
    let headers = headers.iter().map(|header| toned(*header, Tone::Dim)).collect();
    let rows: Vec<Vec<Cell>> = std::iter::once(headers).chain(rows).collect();
    let columns = rows[0].len();
    let shown = |cell: &Cell| if cell.text.is_empty() { "-".to_owned() } else { cell.text.clone() };
    let width = |at: usize| rows.iter().map(|row| shown(&row[at]).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let shown = shown(cell);
            let pad = widths[at].saturating_sub(shown.chars().count()) + 3;
            line.push_str(&paint(&shown, cell.tone, style.colours));
            if at + 1 < columns {
                line.push_str(&" ".repeat(pad));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub fn paint(text: &str, tone: Tone, colours: bool) -> String {
    let code = match tone {
        Tone::Plain => None,
        Tone::Dim => Some("2"),
        Tone::Good => Some("32"),
        Tone::Bad => Some("31"),
    };
    match code.filter(|_| colours) {
        Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
        None => text.to_owned(),
    }
}
