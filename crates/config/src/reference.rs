//! The grammar of `${…}` in a string: text into parts.
//!
//! ```text
//! value     = { text | "\${" | "${" reference "}" }        backslashes count only in front of "${"
//! reference = { "." } key { "." key | "[" key "]" }         keys may contain references
//!           | name ":" [ argument { "," argument } ]        a resolver, such as oc.env:HOME
//! argument  = quoted | list | map | text                    with references inside
//! ```

use crate::error::ReferenceFault;

/// References inside references beyond which a value is refused.
const MAX_NESTING: usize = 32;

/// A piece of a string.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Reference(Reference),
}

/// What stands between `${` and `}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reference {
    /// A key: leading dots, then the parts of the path.
    Key { dots: usize, segments: Vec<Vec<Part>>, text: String },
    /// A resolver and its arguments.
    Call { name: String, arguments: Vec<Argument> },
}

/// A resolver's argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Argument {
    /// Unquoted: a number, `true`, `null`, or text.
    Bare(Vec<Part>),
    Quoted(Vec<Part>),
    List(Vec<Argument>),
    Map(Vec<(Vec<Part>, Argument)>),
}

/// Splits a string into text and references.
pub(crate) fn parse_value(text: &str) -> Result<Vec<Part>, ReferenceFault> {
    let mut cursor = Cursor { text, at: 0, nesting: 0 };
    cursor.parts(&|_| false)
}

/// Parses text as one resolver argument, as `oc.decode` does.
pub(crate) fn parse_argument(text: &str) -> Result<Argument, ReferenceFault> {
    let mut cursor = Cursor { text, at: 0, nesting: 0 };
    let argument = cursor.argument(&|_| false)?;
    cursor.skip_blanks();
    if cursor.peek().is_some() { Err(cursor.bad("unexpected text after the value")) } else { Ok(argument) }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
    nesting: usize,
}

impl Cursor<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn skip_blanks(&mut self) {
        while self.eat(" ") || self.eat("\t") {}
    }

    fn bad(&self, reason: &'static str) -> ReferenceFault {
        ReferenceFault::Syntax { text: self.text.to_owned(), reason }
    }

    /// Text and references up to a character that ends them, which is not consumed.
    fn parts(&mut self, ends: &dyn Fn(char) -> bool) -> Result<Vec<Part>, ReferenceFault> {
        let mut parts = Vec::new();
        let mut text = String::new();
        loop {
            if self.eat("${") {
                // Of the backslashes in front, each pair is one; an odd one makes the `${` text.
                let slashes = text.len() - text.trim_end_matches('\\').len();
                text.truncate(text.len() - slashes.div_ceil(2));
                if slashes % 2 == 1 {
                    text.push_str("${");
                    continue;
                }
                if !text.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut text)));
                }
                parts.push(Part::Reference(self.reference()?));
                continue;
            }
            match self.peek() {
                Some(c) if !ends(c) => {
                    text.push(c);
                    self.bump();
                }
                _ => break,
            }
        }
        if !text.is_empty() || parts.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    /// What follows `${`, with the closing brace.
    fn reference(&mut self) -> Result<Reference, ReferenceFault> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(ReferenceFault::TooDeep { limit: MAX_NESTING });
        }
        self.skip_blanks();
        let reference = match self.resolver_name() {
            Some(name) => Reference::Call { name, arguments: self.arguments()? },
            None => self.key()?,
        };
        self.skip_blanks();
        self.nesting -= 1;
        if self.eat("}") { Ok(reference) } else { Err(self.bad("expected `}`")) }
    }

    /// `name:` or `a.b:`, if that is what comes next.
    fn resolver_name(&mut self) -> Option<String> {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)))?;
        let name = &rest[..end];
        if !rest[end..].starts_with(':') || !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            return None;
        }
        let name = name.to_owned();
        self.at += end + 1;
        Some(name)
    }

    fn key(&mut self) -> Result<Reference, ReferenceFault> {
        let start = self.at;
        let mut dots = 0;
        while self.eat(".") {
            dots += 1;
        }
        let mut segments = Vec::new();
        if self.peek() != Some('[') {
            segments.push(self.segment()?);
        }
        loop {
            if self.eat("[") {
                segments.push(self.segment()?);
                if !self.eat("]") {
                    return Err(self.bad("expected `]`"));
                }
            } else if self.eat(".") {
                segments.push(self.segment()?);
            } else {
                let text = self.text[start..self.at].to_owned();
                return Ok(Reference::Key { dots, segments, text });
            }
        }
    }

    fn segment(&mut self) -> Result<Vec<Part>, ReferenceFault> {
        let parts = self.parts(&|c| ".[]{}:,\"'".contains(c) || c.is_whitespace())?;
        match &parts[..] {
            [Part::Text(text)] if text.is_empty() => Err(self.bad("expected a key")),
            [Part::Text(text)] if text.contains('$') => Err(self.bad("unexpected `$`")),
            _ => Ok(parts),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Argument>, ReferenceFault> {
        self.skip_blanks();
        if self.peek() == Some('}') {
            return Ok(Vec::new());
        }
        let mut arguments = vec![self.argument(&|c| c == ',' || c == '}')?];
        while self.eat(",") {
            arguments.push(self.argument(&|c| c == ',' || c == '}')?);
        }
        Ok(arguments)
    }

    fn argument(&mut self, ends: &dyn Fn(char) -> bool) -> Result<Argument, ReferenceFault> {
        self.skip_blanks();
        let argument = match self.peek() {
            Some(quote @ ('"' | '\'')) => self.quoted(quote)?,
            Some('[') => self.list()?,
            Some('{') => self.map()?,
            _ => Argument::Bare(trimmed(self.parts(ends)?)),
        };
        self.skip_blanks();
        Ok(argument)
    }

    /// Text in quotes; `\'` is a quote inside, and of the backslashes in front of a quote each pair is one.
    fn quoted(&mut self, quote: char) -> Result<Argument, ReferenceFault> {
        self.bump();
        let mut parts = Vec::new();
        loop {
            parts.append(&mut self.parts(&|c| c == quote)?);
            if self.bump() != Some(quote) {
                return Err(self.bad("expected a closing quote"));
            }
            let Some(Part::Text(text)) = parts.last_mut() else { return Ok(Argument::Quoted(parts)) };
            let slashes = text.len() - text.trim_end_matches('\\').len();
            text.truncate(text.len() - slashes.div_ceil(2));
            if slashes % 2 == 0 {
                return Ok(Argument::Quoted(parts));
            }
            text.push(quote);
        }
    }

    fn deeper(&mut self) -> Result<(), ReferenceFault> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING { Err(ReferenceFault::TooDeep { limit: MAX_NESTING }) } else { Ok(()) }
    }

    fn list(&mut self) -> Result<Argument, ReferenceFault> {
        self.deeper()?;
        self.bump();
        let mut items = Vec::new();
        self.skip_blanks();
        while !self.eat("]") {
            items.push(self.argument(&|c| ",]}".contains(c))?);
            if !self.eat(",") && self.peek() != Some(']') {
                return Err(self.bad("expected `,` or `]`"));
            }
        }
        self.nesting -= 1;
        Ok(Argument::List(items))
    }

    fn map(&mut self) -> Result<Argument, ReferenceFault> {
        self.deeper()?;
        self.bump();
        let mut entries = Vec::new();
        self.skip_blanks();
        while !self.eat("}") {
            self.skip_blanks();
            let key = trimmed(self.parts(&|c| ":,}]".contains(c))?);
            if !self.eat(":") {
                return Err(self.bad("expected `:`"));
            }
            entries.push((key, self.argument(&|c| ",]}".contains(c))?));
            if !self.eat(",") && self.peek() != Some('}') {
                return Err(self.bad("expected `,` or `}`"));
            }
        }
        self.nesting -= 1;
        Ok(Argument::Map(entries))
    }
}

/// Without blanks at the end; those at the start are skipped before.
fn trimmed(mut parts: Vec<Part>) -> Vec<Part> {
    if let Some(Part::Text(text)) = parts.last_mut() {
        text.truncate(text.trim_end().len());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn key(dots: usize, segments: &[&str], raw: &str) -> Part {
        let segments = segments.iter().map(|segment| vec![text(segment)]).collect();
        Part::Reference(Reference::Key { dots, segments, text: raw.to_owned() })
    }

    #[test]
    fn keys_and_text() {
        assert_eq!(parse_value("a/${b.c}/d"), Ok(vec![text("a/"), key(0, &["b", "c"], "b.c"), text("/d")]));
        assert_eq!(parse_value("${a[0].b}"), Ok(vec![key(0, &["a", "0", "b"], "a[0].b")]));
        assert_eq!(parse_value("${..a}"), Ok(vec![key(2, &["a"], "..a")]));
        assert_eq!(parse_value("plain } text $x"), Ok(vec![text("plain } text $x")]));
    }

    #[test]
    fn backslashes_escape() {
        assert_eq!(parse_value(r"\${a}"), Ok(vec![text("${a}")]));
        assert_eq!(parse_value(r"\\${a}"), Ok(vec![text(r"\"), key(0, &["a"], "a")]));
        assert_eq!(parse_value(r"x\\\${a}"), Ok(vec![text(r"x\${a}")]));
        assert_eq!(parse_value(r"a\b"), Ok(vec![text(r"a\b")]));
    }

    #[test]
    fn quotes_are_escaped_by_backslashes() {
        let argument = |text: &str| match parse_argument(text) {
            Ok(Argument::Quoted(parts)) => parts.into_iter().fold(String::new(), |all, part| match part {
                Part::Text(text) => all + &text,
                Part::Reference(_) => all + "<reference>",
            }),
            other => panic!("{text}: {other:?}"),
        };
        for (text, expected) in [
            (r"'it\'s'", "it's"),
            (r"'a\\'", r"a\"),
            (r"'a\\\'b'", r"a\'b"),
            (r#"'a"\b'"#, r#"a"\b"#),
            (r"'${a}\'${b}'", "<reference>'<reference>"),
            ("''", ""),
        ] {
            assert_eq!(argument(text), expected, "{text}");
        }
        assert!(parse_argument(r"'a\'").is_err());
    }

    #[test]
    fn broken_references_say_what_is_expected() {
        for (value, expected) in [
            ("${a", "expected `}`"),
            ("${", "expected a key"),
            ("${}", "expected a key"),
            ("${a b}", "expected `}`"),
            ("${a[0}", "expected `]`"),
            ("${a..b}", "expected a key"),
            ("${oc.env:'x}", "expected a closing quote"),
            ("${oc.create:[1,2}", "expected `,` or `]`"),
            ("${oc.create:{a}}", "expected `:`"),
        ] {
            match parse_value(value) {
                Err(ReferenceFault::Syntax { reason, .. }) => assert_eq!(reason, expected, "{value}"),
                other => panic!("{value}: {other:?}"),
            }
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let value = format!("{}a{}", "${".repeat(500), "}".repeat(500));
        assert!(matches!(parse_value(&value), Err(ReferenceFault::TooDeep { .. })));
        let value = format!("${{oc.create:{}", "[".repeat(500));
        assert!(matches!(parse_value(&value), Err(ReferenceFault::TooDeep { .. })));
    }
}
