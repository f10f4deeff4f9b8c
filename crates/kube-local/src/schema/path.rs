//! The path of a value; rendered only for errors.

use std::fmt::Write;

#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: PathSegment<'a>,
}

#[derive(Clone, Copy)]
enum PathSegment<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) const ROOT: Path<'static> = Path { parent: None, segment: PathSegment::Root };

    pub(super) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Field(name) }
    }

    /// An entry of a free map.
    pub(super) fn key(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Key(name) }
    }

    pub(super) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), segment: PathSegment::Index(index) }
    }

    /// `spec.labels[app]`
    pub(super) fn bracketed(&self) -> String {
        self.render(true)
    }

    /// `spec.labels.app`, as in schema validation errors.
    pub(super) fn dotted(&self) -> String {
        self.render(false)
    }

    fn render(&self, bracket_keys: bool) -> String {
        let mut text = self.parent.map(|above| above.render(bracket_keys)).unwrap_or_default();
        match self.segment {
            PathSegment::Root => {}
            PathSegment::Index(index) => write!(text, "[{index}]").expect("a String takes every write"),
            PathSegment::Key(name) if bracket_keys => {
                write!(text, "[{name}]").expect("a String takes every write")
            }
            PathSegment::Field(name) | PathSegment::Key(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
        }
        text
    }
}
