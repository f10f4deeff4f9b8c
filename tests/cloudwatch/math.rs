//! Metric math, as much of it as the tests use: numbers, Ids, `+ - * /`,
//! brackets, `FILL(series, number)`, `SUM([series, …])` and `MIN_METRICS()`.
//!
//! As CloudWatch does it: two series meet where both have a value, and what is
//! divided by zero has none.

use std::collections::BTreeMap;

pub type Series = BTreeMap<i64, f64>;

#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    Number(f64),
    Series(Series),
    List(Vec<Series>),
}

/// The inputs of an expression.
pub struct EvalContext<'a> {
    pub ids: &'a BTreeMap<String, Series>,
    /// Of these, the metrics.
    pub metrics: Vec<Series>,
    /// Where each period of the request begins.
    pub periods: Vec<i64>,
}

/// The value of an expression, or its error.
pub fn evaluate(expression: &str, known: &EvalContext<'_>) -> Result<Series, String> {
    let mut parser = Parser { rest: expression.trim(), context: known };
    let term = parser.sum()?;
    match term {
        _ if !parser.rest.is_empty() => Err(format!("Error in expression: unexpected {:?}", parser.rest)),
        Term::Series(series) => Ok(series),
        Term::Number(_) | Term::List(_) => Err("The expression does not return a time series".to_owned()),
    }
}

struct Parser<'a> {
    rest: &'a str,
    context: &'a EvalContext<'a>,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Term, String> {
        let mut left = self.product()?;
        while let Some(operator) = self.one_of(&["+", "-"]) {
            let right = self.product()?;
            left = apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Term, String> {
        let mut left = self.term()?;
        while let Some(operator) = self.one_of(&["*", "/"]) {
            let right = self.term()?;
            left = apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Term, String> {
        if self.one_of(&["("]).is_some() {
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.one_of(&["["]).is_some() {
            let mut list = Vec::new();
            loop {
                list.push(self.series()?);
                if self.one_of(&[","]).is_none() {
                    break;
                }
            }
            self.expect("]")?;
            return Ok(Term::List(list));
        }
        let length = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let (word, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        if let Ok(number) = word.parse() {
            return Ok(Term::Number(number));
        }
        if self.one_of(&["("]).is_some() {
            return self.call(word);
        }
        let series = self.context.ids.get(word);
        series.cloned().map(Term::Series).ok_or_else(|| format!("Unknown metric or expression id {word:?}"))
    }

    fn call(&mut self, function: &str) -> Result<Term, String> {
        let result = match function {
            "METRICS" => Term::List(self.context.metrics.clone()),
            "FILL" => {
                let mut series = self.series()?;
                self.expect(",")?;
                let Term::Number(fill) = self.term()? else { return Err("FILL wants a number".to_owned()) };
                for at in &self.context.periods {
                    series.entry(*at).or_insert(fill);
                }
                Term::Series(series)
            }
            "SUM" => {
                let Term::List(list) = self.sum()? else { return Err("SUM wants a list here".to_owned()) };
                let mut all = Series::new();
                for (at, value) in list.into_iter().flatten() {
                    *all.entry(at).or_default() += value;
                }
                Term::Series(all)
            }
            _ => return Err(format!("Unknown function {function}")),
        };
        self.expect(")")?;
        Ok(result)
    }

    fn series(&mut self) -> Result<Series, String> {
        match self.sum()? {
            Term::Series(series) => Ok(series),
            other => Err(format!("{other:?} is no time series")),
        }
    }

    fn one_of(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        let sign = signs.iter().find(|sign| self.rest.starts_with(**sign))?;
        self.rest = self.rest[sign.len()..].trim_start();
        Some(sign)
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), String> {
        self.one_of(&[sign]).map(drop).ok_or_else(|| format!("expected {sign} at {:?}", self.rest))
    }
}

fn apply(operator: &str, left: Term, right: Term) -> Result<Term, String> {
    let compute = |a: f64, b: f64| match operator {
        "+" => Some(a + b),
        "-" => Some(a - b),
        "*" => Some(a * b),
        _ => (b != 0.0).then(|| a / b),
    };
    let each = |series: Series, compute: &dyn Fn(i64, f64) -> Option<f64>| {
        let computed = series.into_iter().filter_map(|(at, value)| Some((at, compute(at, value)?)));
        Ok(Term::Series(computed.collect()))
    };
    match (left, right) {
        (Term::Number(a), Term::Number(b)) => {
            compute(a, b).map(Term::Number).ok_or_else(|| "Division by zero".to_owned())
        }
        (Term::Series(a), Term::Number(b)) => each(a, &|_, a| compute(a, b)),
        (Term::Number(a), Term::Series(b)) => each(b, &|_, b| compute(a, b)),
        (Term::Series(a), Term::Series(b)) => each(a, &|at, a| compute(a, *b.get(&at)?)),
        _ => Err("lists are for functions".to_owned()),
    }
}
