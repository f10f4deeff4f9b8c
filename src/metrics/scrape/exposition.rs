//! Parser of Prometheus' text format, and of OpenMetrics where both agree.

use std::borrow::Cow;
use std::collections::HashMap;

#[derive(Debug, PartialEq)]
pub struct Sample<'t> {
    pub name: &'t str,
    pub labels: Vec<(&'t str, Cow<'t, str>)>,
    /// Name and labels as in the text.
    pub series: &'t str,
    pub value: f64,
}

impl Sample<'_> {
    /// Empty if missing.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(label, _)| *label == name).map_or("", |(_, value)| value)
    }
}

/// Without the text: it may be of another server than a pod's metrics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not in Prometheus' text format")]
pub struct ExpositionError {
    line: usize,
}

pub fn samples(text: &str) -> impl Iterator<Item = Result<Sample<'_>, ExpositionError>> {
    let lines = text.lines().map(str::trim).enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(at, line)| sample(line).ok_or(ExpositionError { line: at + 1 }))
}

/// The `# TYPE` declarations.
pub struct MetricTypes<'t>(HashMap<&'t str, &'t str>);

impl<'t> MetricTypes<'t> {
    pub fn of(text: &'t str) -> Self {
        let types = text.lines().filter_map(|line| {
            let mut words = line.trim().strip_prefix("# TYPE ")?.split_whitespace();
            Some((words.next()?, words.next()?))
        });
        Self(types.collect())
    }

    /// By the declaration; without one, by the suffix of the name. The quantiles of a
    /// summary, which have the name of the summary itself, are none.
    pub fn is_counter(&self, series: &str) -> bool {
        let family =
            ["_total", "_bucket", "_count", "_sum"].into_iter().find_map(|end| series.strip_suffix(end));
        let declared = self.0.get(series);
        match declared.or_else(|| self.0.get(family?)).copied() {
            Some("counter") => true,
            Some("histogram" | "summary") => declared.is_none(),
            Some("untyped" | "unknown") | None => family.is_some(),
            Some(_) => false,
        }
    }
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')?;
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let series = &line[..line.len() - rest.len()];
    // A timestamp and an exemplar may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, series, value })
}

type SampleLabels<'t> = Vec<(&'t str, Cow<'t, str>)>;

fn labels(mut rest: &str) -> Option<(SampleLabels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (label, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((label.trim(), value));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(more) => more,
            None if after.starts_with('}') => after,
            None => return None,
        };
    }
}

/// Up to the closing quote.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut unescaped = String::new();
    let mut copied = 0;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' if copied == 0 => return Some((Cow::Borrowed(&text[..at]), &text[at + 1..])),
            '"' => {
                unescaped.push_str(&text[copied..at]);
                return Some((Cow::Owned(unescaped), &text[at + 1..]));
            }
            '\\' => {
                unescaped.push_str(&text[copied..at]);
                let (next, escaped) = chars.next()?;
                unescaped.push(if escaped == 'n' { '\n' } else { escaped });
                copied = next + escaped.len_utf8();
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(line: &str) -> Sample<'_> {
        samples(line).next().expect("a sample").expect("a well-formed one")
    }

    #[test]
    fn every_form_of_a_line_is_parsed() {
        for (line, series, value) in [
            ("up 1", "up", 1.0),
            ("up{} 1 1395066363000", "up{}", 1.0),
            (r#"hits{code="200",method="post"} 1027"#, r#"hits{code="200",method="post"}"#, 1027.0),
            (r#"hits { code = "200" , } 3e2"#, r#"hits { code = "200" , }"#, 300.0),
            (r#"a_bucket{le="+Inf"} 7 # {trace_id="x y"} 0.67 1.5"#, r#"a_bucket{le="+Inf"}"#, 7.0),
            ("x -Inf", "x", f64::NEG_INFINITY),
        ] {
            let sample = one(line);
            assert_eq!(sample.value, value, "{line}");
            assert_eq!(sample.series.replace(' ', ""), series.replace(' ', ""), "{line}");
        }
        assert!(one("x NaN").value.is_nan());
        assert_eq!(one(r#"hits { code = "200" , } 3"#).label("code"), "200");
    }

    #[test]
    fn comments_and_empty_lines_are_ignored() {
        assert_eq!(samples("# HELP a b\n# TYPE a counter\n\n  # EOF\n").count(), 0);
    }

    #[test]
    fn escapes_are_undone() {
        let sample = one(r#"e{path="C:\\DIR\\",error="Cannot find:\n\"FILE\"}"} 1.4"#);
        assert_eq!(sample.label("path"), r"C:\DIR\");
        assert_eq!(sample.label("error"), "Cannot find:\n\"FILE\"}");
        assert_eq!(sample.label("other"), "");
    }

    #[test]
    fn a_broken_line_is_named() {
        for text in ["up", "up x", "9up 1", "a{b} 1", "a{b=\"c} 1", "a{b=\"c\" d=\"e\"} 1", "{} 1", "<html>"]
        {
            let error = samples(&format!("ok 1\n{text}")).nth(1).unwrap().expect_err(text);
            assert_eq!(error.line, 2, "{text}");
        }
    }

    #[test]
    fn counters_are_distinguished_from_other_types() {
        let text = "# TYPE a gauge\n# TYPE b counter\n# TYPE c histogram\n# TYPE d counter\n# TYPE e_total gauge\n# TYPE f summary\n";
        let types = MetricTypes::of(text);
        for (series, is_counter) in [
            ("a", false),
            ("b", true),
            ("c_bucket", true),
            ("c_count", true),
            ("d_total", true),
            ("e_total", false),
            ("f", false),
            ("f_sum", true),
            ("f_count", true),
            ("unknown_total", true),
            ("unknown", false),
        ] {
            assert_eq!(types.is_counter(series), is_counter, "{series}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "[a-z{}=\",\\\\# 0-9\n\u{e9}]{0,200}") {
            prop_assert!(samples(&text).count() <= text.lines().count());
        }

        #[test]
        fn any_label_value_survives(value in ".*") {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            prop_assume!(!escaped.contains(['\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}']));
            let line = format!("a{{b=\"{escaped}\"}} 1");
            let sample = one(&line);
            prop_assert_eq!(sample.label("b"), value);
        }
    }
}
