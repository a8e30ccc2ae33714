//! A Rust file as its tokens, so that comments and texts don't count; and the rules that need no more: the size of a
//! module without its tests, and no code that is still to be written.

use std::iter;

use proc_macro2::{Delimiter, LexError, Spacing, TokenStream, TokenTree};

use crate::tidy::Fault;

/// A module has fewer lines than this, tests not counted.
const MOST_LINES: usize = 600;

/// Macros that stand for code that isn't there.
const UNWRITTEN: &[&str] = &["todo", "unimplemented"];

/// One Rust file.
#[derive(Debug)]
pub(super) struct Tokens {
    lines: usize,
    /// The outermost level, from which all others hang.
    stream: Vec<TokenTree>,
}

impl Tokens {
    pub(super) fn read(text: &str) -> Result<Self, LexError> {
        let stream: TokenStream = text.parse()?;
        Ok(Self { lines: text.lines().count(), stream: stream.into_iter().collect() })
    }

    /// The lines on which a word stands in code.
    pub(super) fn words(&self, word: &str) -> impl Iterator<Item = usize> {
        self.flat().into_iter().filter(move |tree| matches!(tree, TokenTree::Ident(ident) if ident == word)).map(line)
    }

    /// The lines on which a macro is called.
    fn calls(&self, name: &str) -> impl Iterator<Item = usize> {
        let flat = self.flat();
        let next = flat.clone().into_iter().skip(1);
        flat.into_iter()
            .zip(next)
            .filter(move |(tree, next)| {
                matches!(tree, TokenTree::Ident(ident) if ident == name)
                    && matches!(next, TokenTree::Punct(punct) if punct.as_char() == '!' && punct.spacing() == Spacing::Alone)
            })
            .map(|(tree, _)| line(tree))
    }

    /// How many lines the file has outside of its modules of tests (`#[cfg(test)] mod tests { .. }`).
    fn lines_without_tests(&self) -> usize {
        let tests: usize = self
            .stream
            .iter()
            .enumerate()
            .filter(|(at, _)| is_test_attribute(&self.stream[..=*at]))
            .filter_map(|(at, attribute)| {
                let rest = &self.stream[at + 1..];
                let is_module = matches!(rest.first(), Some(TokenTree::Ident(ident)) if ident == "mod");
                match rest.get(2) {
                    Some(TokenTree::Group(body)) if is_module && body.delimiter() == Delimiter::Brace => {
                        Some(body.span_close().end().line - attribute.span().start().line + 1)
                    }
                    _ => None,
                }
            })
            .sum();
        self.lines - tests
    }

    /// All tokens in order; a group is followed by what is in it.
    fn flat(&self) -> Vec<TokenTree> {
        fn flatten(tree: TokenTree) -> Vec<TokenTree> {
            let inner: Vec<TokenTree> = match &tree {
                TokenTree::Group(group) => group.stream().into_iter().flat_map(flatten).collect(),
                _ => Vec::new(),
            };
            iter::once(tree).chain(inner).collect()
        }
        self.stream.iter().cloned().flat_map(flatten).collect()
    }
}

/// The line on which a token starts.
#[expect(clippy::needless_pass_by_value, reason = "ends a chain of owned tokens")]
fn line(tree: TokenTree) -> usize {
    tree.span().start().line
}

/// Whether the tokens end with `#[cfg(test)]`.
fn is_test_attribute(tokens: &[TokenTree]) -> bool {
    let [.., TokenTree::Punct(hash), TokenTree::Group(group)] = tokens else { return false };
    let inside: String = group.stream().to_string().split_whitespace().collect();
    hash.as_char() == '#' && inside == "cfg(test)"
}

/// Checks one file. Files of tests may be long.
pub(super) fn check(path: &str, tokens: &Tokens) -> Vec<Fault> {
    let mut faults = Vec::new();
    let is_test = path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "benches");
    let lines = tokens.lines_without_tests();
    if !is_test && lines >= MOST_LINES {
        faults.push(Fault::new(
            path,
            format!("has {lines} lines without its tests; a module has fewer than {MOST_LINES}"),
        ));
    }
    for name in UNWRITTEN {
        faults.extend(tokens.calls(name).map(|line| Fault::at(path, line, format!("calls `{name}!`"))));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str) -> usize {
        check(path, &Tokens::read(text).unwrap()).len()
    }

    #[test]
    fn a_module_is_measured_without_its_tests() {
        let code = |lines: usize| "fn f() {}\n".repeat(lines);
        let tests = |lines: usize| format!("#[cfg(test)]\nmod tests {{\n{}}}\n", code(lines));
        for (path, text, count) in [
            ("core/src/a.rs", code(599), 0),
            ("core/src/a.rs", code(600), 1),
            ("core/src/a.rs", code(599) + &tests(300), 0),
            ("core/src/a.rs", code(600) + &tests(300), 1),
            ("core/src/a.rs", format!("mod tests {{\n{}}}\n", code(600)), 1),
            ("core/src/a.rs", format!("#[cfg(test)]\nfn f() {{}}\n{}", code(600)), 1),
            ("core/src/a/tests.rs", code(900), 0),
            ("migperfd/tests/run.rs", code(900), 0),
        ] {
            assert_eq!(faults(path, &text), count, "{path}, {} lines", text.lines().count());
        }
    }

    #[test]
    fn unwritten_code_is_found_where_it_is_code() {
        for (text, count) in [
            ("fn f() { todo!() }", 1),
            ("fn f() { if x { unimplemented!(\"later\") } }", 1),
            ("fn f() { std::todo![]; todo!{} }", 2),
            ("// todo!()\nfn todo() {}", 0),
            ("fn f() { let _ = \"todo!()\"; if todo != 1 {} }", 0),
        ] {
            assert_eq!(faults("core/src/a.rs", text), count, "{text}");
        }
    }
}
