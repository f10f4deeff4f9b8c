//! Where in an object we are; costs nothing until something is wrong there.

use std::fmt::Write;

#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    above: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> = Path { above: None, step: Step::Root };

    pub(super) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { above: Some(self), step: Step::Field(name) }
    }

    /// An entry of a free map.
    pub(super) fn key(&'a self, name: &'a str) -> Path<'a> {
        Path { above: Some(self), step: Step::Key(name) }
    }

    pub(super) fn index(&'a self, index: usize) -> Path<'a> {
        Path { above: Some(self), step: Step::Index(index) }
    }

    /// `spec.labels[app]`
    pub(super) fn bracketed(&self) -> String {
        self.render(true)
    }

    /// `spec.labels.app`, as schema validation has it.
    pub(super) fn dotted(&self) -> String {
        self.render(false)
    }

    fn render(&self, bracket_keys: bool) -> String {
        let mut text = self.above.map(|above| above.render(bracket_keys)).unwrap_or_default();
        match self.step {
            Step::Root => {}
            Step::Index(index) => write!(text, "[{index}]").expect("a String takes every write"),
            Step::Key(name) if bracket_keys => write!(text, "[{name}]").expect("a String takes every write"),
            Step::Field(name) | Step::Key(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
        }
        text
    }
}
