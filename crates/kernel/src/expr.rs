//! The expression language of conditions.
//!
//! ```text
//!   or      = and ("||" and)*
//!   and     = not ("&&" not)*
//!   not     = "!" not | compare
//!   compare = operand (("==" | "!=" | ">" | ">=" | "<" | "<=" | "in") operand)?
//!   operand = value ("??" value)*
//!   value   = path | number | 'text' | "text" | true | false | null | "(" or ")"
//! ```
//!
//! `a ?? b` is `a`, or `b` when `a` is missing or null. It binds tighter than a comparison: `a ?? 0 > 5` asks whether
//! `a`, by default 0, is greater than 5.
//!
//! Evaluation never fails because of the data: a missing value reads as null, and a comparison of different types is
//! false (`!=` is true). It fails only when a value is not in memory, and then names it ([`Unresolved`]).

use crate::path::{self, Problem, Ref, Resolve, Root, TaskField};
use crate::scope::{Scope, Unresolved};
use crate::status::canonical_step_status;
use crate::wire::{self, Raw};
use serde_json::Value;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

/// Longer expressions are refused before they are parsed.
pub const LEN_MAX: usize = 4 * 1024;
/// Deeper nesting of `(` and `!` is refused.
const DEPTH_MAX: u32 = 64;
/// The hint for a call of a function.
const FUNCTIONS: &str = "an expression has no functions; it compares values with `==`, `!=`, `<`, `<=`, `>`, `>=` and `in`, joined by `&&`, `||` and `!`";

names! {
    pub enum Op {
        Eq = 1 "==",
        Ne = 2 "!=",
        Gt = 3 ">",
        Ge = 4 ">=",
        Lt = 5 "<",
        Le = 6 "<=",
        In = 7 "in",
    }
}

choice! {
    /// A parsed expression. `args` has two members for `Compare`, one for `Not`, two or more for `And`, `Or` and
    /// `Coalesce`.
    pub enum Expr {
        1 => Null {},
        2 => Bool { 1 => value: bool },
        3 => Number { 1 => value: Float },
        4 => Text { 1 => value: String },
        5 => Path { 1 => path: Ref },
        6 => Not { 1 => args: Vec<Expr> },
        7 => And { 1 => args: Vec<Expr> },
        8 => Or { 1 => args: Vec<Expr> },
        9 => Compare { 1 => op: Op, 2 => args: Vec<Expr> },
        /// `a ?? b`: the first that is neither missing nor null.
        10 => Coalesce { 1 => args: Vec<Expr> },
    }
}

/// A number, stored as its eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Float(pub f64);

impl wire::Value for Float {
    fn put(&self, number: u32, out: &mut wire::Writer) {
        self.0.to_le_bytes().put(number, out);
    }
    fn take(raw: Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
        <[u8; 8]>::take(raw, depth).map(|b| Float(f64::from_le_bytes(b)))
    }
}

/// Parses `text` and resolves every path in it. All unresolvable paths are reported together; a syntax error ends
/// the parse.
pub fn parse(text: &str, resolve: &mut Resolve<'_>) -> Result<Expr, Vec<Problem>> {
    if text.len() > LEN_MAX {
        let message = format!("this expression has {} bytes, the limit is {LEN_MAX}", text.len());
        return Err(vec![Problem::new("expression_too_long", message, 0, text.len())]);
    }
    let mut parser = Parser::new(text, 0, resolve);
    let expr = parser.or(0).and_then(|expr| {
        parser.space();
        match parser.text[parser.pos..].chars().next() {
            None => Ok(expr),
            Some('=') => Err(parser.syntax("unexpected `=`").hint("equality is written `==`")),
            Some(c) => Err(parser.syntax(format!("unexpected `{c}` after the end of the expression"))),
        }
    });
    match expr {
        Err(problem) => {
            parser.problems.push(problem);
            Err(parser.problems)
        }
        Ok(_) if !parser.problems.is_empty() => Err(parser.problems),
        Ok(expr) => Ok(expr),
    }
}

pub(crate) struct Parser<'t, 'f, 'r> {
    text: &'t str,
    /// How far the text is read, in bytes.
    pub(crate) pos: usize,
    resolve: &'f mut Resolve<'r>,
    /// Paths that could not be resolved.
    pub(crate) problems: Vec<Problem>,
}

impl<'t, 'f, 'r> Parser<'t, 'f, 'r> {
    pub(crate) fn new(text: &'t str, pos: usize, resolve: &'f mut Resolve<'r>) -> Self {
        Parser { text, pos, resolve, problems: Vec::new() }
    }

    fn syntax(&self, message: impl Into<String>) -> Problem {
        let len = self.text[self.pos..].chars().next().map_or(1, char::len_utf8);
        Problem::new("expression_syntax", message, self.pos, len)
    }

    pub(crate) fn space(&mut self) {
        self.pos += self.text[self.pos..].len() - self.text[self.pos..].trim_start().len();
    }

    pub(crate) fn eat(&mut self, token: &str) -> bool {
        self.space();
        let hit = self.text[self.pos..].starts_with(token);
        if hit {
            self.pos += token.len();
        }
        hit
    }

    fn or(&mut self, depth: u32) -> Result<Expr, Problem> {
        self.chain(depth, "||", Self::and, |args| Expr::Or { args })
    }

    fn and(&mut self, depth: u32) -> Result<Expr, Problem> {
        self.chain(depth, "&&", Self::not, |args| Expr::And { args })
    }

    fn chain(
        &mut self,
        depth: u32,
        token: &str,
        operand: fn(&mut Self, u32) -> Result<Expr, Problem>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr, Problem> {
        let mut args = vec![operand(self, depth)?];
        while self.eat(token) {
            args.push(operand(self, depth)?);
        }
        Ok(if args.len() == 1 { args.swap_remove(0) } else { join(args) })
    }

    fn not(&mut self, depth: u32) -> Result<Expr, Problem> {
        self.space();
        if depth > DEPTH_MAX {
            return Err(self.syntax(format!("nested deeper than {DEPTH_MAX}")));
        }
        let rest = &self.text[self.pos..];
        if rest.starts_with('!') && !rest.starts_with("!=") {
            self.pos += 1;
            return Ok(Expr::Not { args: vec![self.not(depth + 1)?] });
        }
        let (start, known) = (self.pos, self.problems.len());
        let left = self.operand(depth)?;
        let operand = start..self.pos;
        let Some(op) = self.operator() else {
            return Ok(left);
        };
        self.hint_at_quotes(operand, known);
        self.space();
        let (start, known) = (self.pos, self.problems.len());
        let right = self.operand(depth)?;
        self.hint_at_quotes(start..self.pos, known);
        if self.operator().is_some() {
            let problem = self.syntax("comparisons do not chain");
            return Err(problem.hint("join two comparisons with `&&`"));
        }
        Ok(Expr::Compare { op, args: vec![left, right] })
    }

    /// A side of a comparison that is one word names no value. Most likely it is a text without quotes.
    fn hint_at_quotes(&mut self, operand: Range<usize>, known: usize) {
        let word = self.text[operand].trim();
        let is_word = !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        if let ([problem], true) = (&mut self.problems[known..], is_word) {
            problem.hint = Some(format!("a text needs quotes: `'{word}'`"));
        }
    }

    fn operator(&mut self) -> Option<Op> {
        for op in [Op::Eq, Op::Ne, Op::Ge, Op::Le, Op::Gt, Op::Lt] {
            if self.eat(op.as_str()) {
                return Some(op);
            }
        }
        let rest = &self.text[self.pos..];
        let word = rest.starts_with("in") && !rest[2..].starts_with(|c: char| c.is_alphanumeric() || "_-.".contains(c));
        word.then(|| {
            self.pos += 2;
            Op::In
        })
    }

    fn operand(&mut self, depth: u32) -> Result<Expr, Problem> {
        self.chain(depth, "??", Self::value, |args| Expr::Coalesce { args })
    }

    fn value(&mut self, depth: u32) -> Result<Expr, Problem> {
        self.space();
        match self.text[self.pos..].chars().next() {
            None => Err(self.syntax("the expression ends where a value is expected")),
            Some('(') => {
                self.pos += 1;
                let inner = self.or(depth + 1)?;
                if self.eat(")") { Ok(inner) } else { Err(self.syntax("expected `)`")) }
            }
            Some(c) if starts_plain(c) => self.plain(depth),
            Some('=') => {
                let problem = self.syntax("expected a value, found `=`");
                Err(problem.hint("equality is written `==`"))
            }
            Some(c) => Err(self.syntax(format!("expected a value, found `{c}`"))),
        }
    }

    /// A path or a literal.
    pub(crate) fn plain(&mut self, depth: u32) -> Result<Expr, Problem> {
        match self.text[self.pos..].chars().next() {
            Some(quote @ ('\'' | '"')) => self.string(quote),
            Some(c) if c.is_ascii_digit() || c == '-' => self.number(),
            _ => self.word(depth),
        }
    }

    fn string(&mut self, quote: char) -> Result<Expr, Problem> {
        let mut value = String::new();
        let mut chars = self.text[self.pos + 1..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.pos += 1 + i + 1;
                    return Ok(Expr::Text { value });
                }
                '\\' => match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, c @ ('\\' | '\'' | '"'))) => value.push(c),
                    _ => {
                        return Err(self.syntax("unknown escape in this text").hint("known are \\n \\t \\\\ \\' \\\""));
                    }
                },
                c => value.push(c),
            }
        }
        Err(self.syntax(format!("this text is not closed with {quote}")))
    }

    fn number(&mut self) -> Result<Expr, Problem> {
        let rest = &self.text[self.pos..];
        let len = rest.bytes().enumerate().take_while(|(i, b)| match b {
            b'0'..=b'9' | b'.' => true,
            b'e' | b'E' => *i > 0,
            b'+' | b'-' => *i == 0 || matches!(rest.as_bytes()[i - 1], b'e' | b'E'),
            _ => false,
        });
        let len = len.count();
        let value = rest[..len].parse::<f64>().ok().filter(|v| v.is_finite());
        let value = value.ok_or_else(|| self.syntax(format!("`{}` is not a number", &rest[..len])))?;
        if is_inexact(value) {
            return Err(Problem::too_large(self.pos, len));
        }
        self.pos += len;
        Ok(Expr::Number { value: Float(value) })
    }

    fn word(&mut self, depth: u32) -> Result<Expr, Problem> {
        let (path, end) = path::read(self.text, self.pos)?;
        self.pos = end;
        if self.text[end..].starts_with('(') {
            return self.call(path.text, path.at, depth);
        }
        match path.text {
            "true" => Ok(Expr::Bool { value: true }),
            "false" => Ok(Expr::Bool { value: false }),
            "null" => Ok(Expr::Null {}),
            _ => Ok(match (self.resolve)(&path) {
                Ok(path) => Expr::Path { path },
                Err(problem) => {
                    self.problems.push(problem);
                    Expr::Null {}
                }
            }),
        }
    }

    /// Refuses what is written as a function, and goes on with its arguments.
    fn call(&mut self, name: &str, at: usize, depth: u32) -> Result<Expr, Problem> {
        let problem = Problem::new("expression_syntax", format!("there is no function `{name}`"), at, name.len());
        self.problems.push(problem.hint(FUNCTIONS));
        self.pos += 1;
        if self.eat(")") {
            return Ok(Expr::Null {});
        }
        loop {
            self.or(depth + 1)?;
            if self.eat(")") {
                return Ok(Expr::Null {});
            }
            if !self.eat(",") {
                return Err(self.syntax("expected `)`"));
            }
        }
    }
}

/// From here on, not every whole number can be told from its neighbours: 2^53.
pub const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// Whether a number may have lost digits when it was read.
pub fn is_inexact(n: f64) -> bool {
    !n.is_finite() || (n.fract() == 0.0 && n.abs() >= EXACT_BELOW)
}

impl Expr {
    /// The value of a literal; null for anything else.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Expr::Bool { value } => Value::from(*value),
            Expr::Number { value: Float(n) } if n.fract() == 0.0 => Value::from(*n as i64),
            Expr::Number { value } => Value::from(value.0),
            Expr::Text { value } => Value::from(value.as_str()),
            _ => Value::Null,
        }
    }
}

/// Does a path or a literal begin with this?
pub(crate) fn starts_plain(c: char) -> bool {
    c.is_alphabetic() || c.is_ascii_digit() || matches!(c, '_' | '-' | '\'' | '"')
}

message! {
    /// A value that a condition read, recorded so that `explain` can show it.
    pub struct Seen {
        1 => path: String,
        /// Its JSON, truncated to [`SEEN_MAX`] bytes.
        2 => value: String,
    }
}

/// Values recorded for `explain` are truncated to this many bytes.
pub const SEEN_MAX: usize = 256;

/// Evaluates a condition; `seen` collects the values it read, once per path.
pub fn truth(expr: &Expr, scope: &dyn Scope, seen: &mut Vec<Seen>) -> Result<bool, Unresolved> {
    eval(expr, scope, seen).map(|value| is_true(&value))
}

/// The value of an expression. A missing value is null.
pub fn value(expr: &Expr, scope: &dyn Scope) -> Result<Value, Unresolved> {
    match expr {
        // Nothing is recorded of what may be a long list.
        Expr::Path { path } => Ok(scope.get(path)?.map_or(Value::Null, Cow::into_owned)),
        other => eval(other, scope, &mut Vec::new()).map(Cow::into_owned),
    }
}

/// A bare value is true unless it is null, false, 0 or ''.
pub fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::String(s) => !s.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}

fn eval<'s>(expr: &'s Expr, scope: &'s dyn Scope, seen: &mut Vec<Seen>) -> Result<Cow<'s, Value>, Unresolved> {
    let bool = |b: bool| Cow::Owned(Value::Bool(b));
    Ok(match expr {
        Expr::Null {} => Cow::Owned(Value::Null),
        Expr::Unknown { .. } => {
            debug_assert!(false, "a step with it never starts, see `Plan::is_known`");
            Cow::Owned(Value::Null)
        }
        Expr::Bool { value } => bool(*value),
        Expr::Number { value } => Cow::Owned(Value::from(value.0)),
        Expr::Text { value } => Cow::Owned(Value::from(value.as_str())),
        Expr::Path { path } => {
            let value = scope.get(path)?.unwrap_or(Cow::Owned(Value::Null));
            if !seen.iter().any(|s| s.path == path.text) {
                seen.push(Seen { path: path.text.clone(), value: cut(value.to_string()), ..Default::default() });
            }
            value
        }
        Expr::Not { args } => bool(!is_true(&*eval(&args[0], scope, seen)?)),
        Expr::And { args } => {
            for arg in args {
                if !is_true(&*eval(arg, scope, seen)?) {
                    return Ok(bool(false));
                }
            }
            bool(true)
        }
        Expr::Or { args } => {
            for arg in args {
                if is_true(&*eval(arg, scope, seen)?) {
                    return Ok(bool(true));
                }
            }
            bool(false)
        }
        Expr::Coalesce { args } => {
            let mut found = Cow::Owned(Value::Null);
            for arg in args {
                found = eval(arg, scope, seen)?;
                if !found.is_null() {
                    break;
                }
            }
            found
        }
        Expr::Compare { op, args } => {
            let (left, right) = (eval(&args[0], scope, seen)?, eval(&args[1], scope, seen)?);
            let status = args.iter().any(is_status);
            bool(compare(*op, &status_word(left, status), &status_word(right, status)))
        }
    })
}

/// True for exactly `tasks.<step>.status`.
fn is_status(expr: &Expr) -> bool {
    matches!(expr, Expr::Path { path } if path.root == Root::Task && path.field == TaskField::Status && path.keys.is_empty())
}

fn status_word<'v>(value: Cow<'v, Value>, status: bool) -> Cow<'v, Value> {
    match &*value {
        Value::String(word) if status => Cow::Owned(Value::from(canonical_step_status(word))),
        _ => value,
    }
}

fn compare(op: Op, left: &Value, right: &Value) -> bool {
    match op {
        Op::Eq => equal(left, right),
        Op::Ne => !equal(left, right),
        Op::Gt => order(left, right) == Some(Ordering::Greater),
        Op::Lt => order(left, right) == Some(Ordering::Less),
        Op::Ge => matches!(order(left, right), Some(Ordering::Greater | Ordering::Equal)),
        Op::Le => matches!(order(left, right), Some(Ordering::Less | Ordering::Equal)),
        Op::In => match (left, right) {
            (needle, Value::Array(list)) => list.iter().any(|v| equal(needle, v)),
            (Value::String(part), Value::String(whole)) => whole.contains(part.as_str()),
            (Value::String(key), Value::Object(map)) => map.contains_key(key),
            _ => false,
        },
    }
}

fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => order(left, right) == Some(Ordering::Equal),
        _ => left == right,
    }
}

/// Compares numbers by size (whole numbers exactly, also beyond 2^53) and texts by bytes; nothing else has an order.
fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i128(), b.as_i128()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
        },
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Truncates a text to [`SEEN_MAX`] bytes, at a character boundary.
pub fn cut(mut text: String) -> String {
    if text.len() > SEEN_MAX {
        let end = (0..=SEEN_MAX - 3).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
