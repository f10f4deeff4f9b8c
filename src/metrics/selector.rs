//! PromQL series selectors: `name{label="value",other=~"a|b"}`.

use regex::{Regex, RegexBuilder};

/// Of all selectors of a query.
const MAX_MATCHERS: usize = 32;

/// Of one compiled pattern, in bytes.
const MAX_PATTERN: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct Selector {
    name: Option<String>,
    matchers: Vec<LabelMatcher>,
}

/// Selectors joined by `or`: the first whose name is present is used.
#[derive(Clone, Debug)]
pub struct SelectorAlternatives(Vec<Selector>);

#[derive(Clone, Debug)]
struct LabelMatcher {
    label: String,
    op: MatchOp,
}

#[derive(Clone, Debug)]
enum MatchOp {
    Equal(String),
    NotEqual(String),
    Regex(Regex),
    NotRegex(Regex),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error(
        "{text:?} is no selector of series, such as http_requests_total{{status=~\"5..\"}}: {expected} is missing at {at:?}"
    )]
    Expected { text: String, expected: &'static str, at: String },
    #[error("{pattern:?} is no regular expression: {why}")]
    Pattern { pattern: String, why: String },
    #[error(
        "{pattern:?} is too large a regular expression; repeat less, or write [0-9A-Za-z_] in place of \\w"
    )]
    LargePattern { pattern: String },
    #[error("there are more than {MAX_MATCHERS} matchers in braces; select by fewer labels")]
    ManyMatchers,
}

impl Selector {
    /// The whole text must be one selector.
    #[cfg(test)]
    fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = SelectorParser::new(text);
        let selector = parser.selector()?;
        parser.end()?;
        Ok(selector)
    }

    pub fn matches_name(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|selected| selected == name)
    }

    /// `label` returns an empty string for a missing label.
    pub fn matches<'s>(&self, name: &'s str, label: impl Fn(&str) -> &'s str) -> bool {
        self.matches_name(name)
            && self.matchers.iter().all(|matcher| {
                let value = if matcher.label == "__name__" { name } else { label(&matcher.label) };
                match &matcher.op {
                    MatchOp::Equal(text) => value == text,
                    MatchOp::NotEqual(text) => value != text,
                    MatchOp::Regex(pattern) => pattern.is_match(value),
                    MatchOp::NotRegex(pattern) => !pattern.is_match(value),
                }
            })
    }
}

impl SelectorAlternatives {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = SelectorParser::new(text);
        let mut selectors = vec![parser.selector()?];
        while parser.keyword("or") {
            selectors.push(parser.selector()?);
        }
        parser.end()?;
        Ok(Self(selectors))
    }

    pub fn first_present(&self, is_present: impl Fn(&Selector) -> bool) -> Option<&Selector> {
        self.0.iter().find(|selector| is_present(selector))
    }
}

/// The selector of `selector`, `sum(selector)` or `sum by (…) (selector)`. Prometheus
/// compiles its patterns.
pub fn inner_of_sum(expression: &str) -> Option<&str> {
    let mut parser = SelectorParser::without_patterns(expression);
    if parser.selector().is_ok() && parser.end().is_ok() {
        return Some(expression.trim());
    }
    let mut parser = SelectorParser::without_patterns(expression);
    let opens = parser.take("sum") && parser.grouping() && parser.take("(");
    parser.skip_space();
    let from = parser.at;
    let selector = if opens { parser.selector().ok() } else { None };
    selector?;
    let to = parser.at;
    let closes = parser.take(")") && parser.grouping() && parser.end().is_ok();
    closes.then(|| expression[from..to].trim())
}

struct SelectorParser<'t> {
    text: &'t str,
    at: usize,
    /// None: patterns are not compiled, and matchers not limited.
    matchers_left: Option<usize>,
}

impl<'t> SelectorParser<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0, matchers_left: Some(MAX_MATCHERS) }
    }

    fn without_patterns(text: &'t str) -> Self {
        Self { text, at: 0, matchers_left: None }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn keyword(&mut self, word: &str) -> bool {
        self.skip_space();
        let rest = self.rest();
        let found = rest.strip_prefix(word).is_some_and(|after| after.starts_with(char::is_whitespace));
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Optional `by (label, other)`; false if it is malformed.
    fn grouping(&mut self) -> bool {
        if !self.take("by") {
            return true;
        }
        let opens = self.take("(");
        while self.name(false).is_some() && self.take(",") {}
        opens && self.take(")")
    }

    fn expected<T>(&self, expected: &'static str) -> Result<T, SelectorError> {
        let at = self.rest().chars().take(20).collect();
        Err(SelectorError::Expected { text: self.text.trim().to_owned(), expected, at })
    }

    fn end(&mut self) -> Result<(), SelectorError> {
        self.skip_space();
        if self.rest().is_empty() { Ok(()) } else { self.expected("the end") }
    }

    fn name(&mut self, colons: bool) -> Option<String> {
        self.skip_space();
        let rest = self.rest();
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
        let end = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        if end == 0 || rest.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        self.at += end;
        Some(rest[..end].to_owned())
    }

    fn selector(&mut self) -> Result<Selector, SelectorError> {
        let name = self.name(true);
        let mut matchers = Vec::new();
        if self.take("{") {
            while !self.take("}") {
                matchers.push(self.matcher()?);
                if !self.take(",") {
                    if self.take("}") {
                        break;
                    }
                    return self.expected("a comma or }");
                }
            }
        }
        if name.is_none() && matchers.is_empty() {
            self.expected("a name")
        } else {
            Ok(Selector { name, matchers })
        }
    }

    fn matcher(&mut self) -> Result<LabelMatcher, SelectorError> {
        let Some(label) = self.name(false) else { return self.expected("a label") };
        let operator = ["=~", "!~", "!=", "="].into_iter().find(|operator| self.take(operator));
        let Some(operator) = operator else { return self.expected("one of =, !=, =~ and !~") };
        let value = self.quoted()?;
        let Some(left) = &mut self.matchers_left else {
            return Ok(LabelMatcher { label, op: MatchOp::Equal(value) });
        };
        *left = left.checked_sub(1).ok_or(SelectorError::ManyMatchers)?;
        let op = match operator {
            "=" => MatchOp::Equal(value),
            "!=" => MatchOp::NotEqual(value),
            "=~" => MatchOp::Regex(pattern(value)?),
            _ => MatchOp::NotRegex(pattern(value)?),
        };
        Ok(LabelMatcher { label, op })
    }

    fn quoted(&mut self) -> Result<String, SelectorError> {
        self.skip_space();
        let mut chars = self.rest().char_indices();
        let Some((_, quote @ ('"' | '\'' | '`'))) = chars.next() else {
            return self.expected("a value in quotes");
        };
        let mut value = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.at += at + c.len_utf8();
                    return Ok(value);
                }
                '\\' if quote != '`' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, c)) => value.push(c),
                    None => break,
                },
                c => value.push(c),
            }
        }
        self.expected("the closing quote")
    }
}

fn pattern(pattern: String) -> Result<Regex, SelectorError> {
    match RegexBuilder::new(&format!("^(?s:{pattern})$")).size_limit(MAX_PATTERN).build() {
        Ok(regex) => Ok(regex),
        Err(regex::Error::CompiledTooBig(_)) => Err(SelectorError::LargePattern { pattern }),
        Err(why) => Err(SelectorError::Pattern { why: why.to_string(), pattern }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, name: &str, labels: &[(&str, &'static str)]) -> bool {
        let label = |key: &str| labels.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| *value);
        Selector::parse(selector).unwrap().matches(name, label)
    }

    #[test]
    fn all_four_comparisons_hold() {
        let series = [("status", "503"), ("path", "/a")];
        for (selector, expected) in [
            ("up", false),
            ("hits", true),
            (r#"hits{status="503"}"#, true),
            (r#"hits{status="5"}"#, false),
            (r#"hits { status =~ "5.." , path!='/b', }"#, true),
            (r#"hits{status=~"5"}"#, false),
            (r#"hits{status!~"5..|4.."}"#, false),
            (r#"hits{status!=`200`}"#, true),
            (r#"hits{code!~"5.."}"#, true),
            (r#"hits{code=""}"#, true),
            (r#"{__name__=~"hi.*"}"#, true),
        ] {
            assert_eq!(matches(selector, "hits", &series), expected, "{selector}");
        }
    }

    #[test]
    fn braces_and_quotes_in_values_are_values() {
        assert!(matches(r#"a{b="}\"{,"}"#, "a", &[("b", "}\"{,")]));
        assert!(matches(r#"a{b="x\\.y"}"#, "a", &[("b", "x\\.y")]));
    }

    #[test]
    fn an_invalid_selector_is_refused_with_an_example() {
        for text in
            ["", "{}", "rate(a[1m])", "a{b}", "a{b=c}", "a{b=\"c\"", "a{b=\"c", "a b", "9a", "a{b=~\"(\"}"]
        {
            let error = Selector::parse(text).expect_err(text).to_string();
            assert!(error.contains("http_requests_total") || error.contains("regular expression"), "{error}");
        }
    }

    #[test]
    fn the_first_alternative_whose_name_exists_is_used() {
        let alternatives = SelectorAlternatives::parse(r#"a{x="1"} or b or c{y="2"}"#).unwrap();
        let selected = alternatives.first_present(|selector| selector.matches_name("c")).unwrap();
        assert_eq!(selected.name.as_deref(), Some("c"));
        assert!(alternatives.first_present(|_| false).is_none());
    }

    #[test]
    fn a_sum_over_a_selector_is_unwrapped() {
        let inner = r#"a_bucket{x="1) by (",y=~"b|c"}"#;
        for expression in [
            inner.to_owned(),
            format!("sum({inner})"),
            format!("sum ( {inner} ) "),
            format!("sum by (le) ({inner})"),
            format!("sum by(le,pod)({inner})"),
            format!("sum({inner}) by (le)"),
            format!("sum({inner})by(le)"),
        ] {
            assert_eq!(inner_of_sum(&expression), Some(inner), "{expression}");
        }
    }

    #[test]
    fn other_expressions_are_not_sums_over_a_selector() {
        for expression in [
            "sum(a) + sum(b)",
            "sum(rate(a[1m]))",
            "max(a)",
            "sum(a) by (le) * 2",
            "sum without (x) (a)",
            "a + b",
            "(a)",
            "sum(a) / sum(b)",
        ] {
            assert_eq!(inner_of_sum(expression), None, "{expression}");
        }
        assert_eq!(inner_of_sum("summary_total"), Some("summary_total"));
    }
}
