//! An error with all that it comes from, in one line: errors here never repeat their source, so that whoever shows one to
//! a person shows the whole chain.

use std::error::Error;

/// The error and its sources, outermost first, joined by colons.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let errors = std::iter::successors(Some(error), |error| (**error).source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the store can't be opened")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn sources_follow_what_they_caused() {
        let error = Outer(std::io::Error::other("the disk is full"));
        assert_eq!(chain(&error), "the store can't be opened: the disk is full");
    }
}
