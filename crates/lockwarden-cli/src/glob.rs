//! Patterns of names, as Redis has them: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` to quote.

/// Does the whole text match the pattern?
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where the last star stands, and what of the text it leaves to the rest.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(after) = one(&pattern, p, text[t]) {
            (p, t) = (after, t + 1);
            continue;
        }
        // Let the last star have one more. An earlier one need never be looked at again.
        let Some((after, from)) = star else { return false };
        star = Some((after, from + 1));
        (p, t) = (after, from + 1);
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Matches one character; the place behind what matched it.
fn one(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match *pattern.get(p)? {
        '?' => Some(p + 1),
        '\\' if p + 1 < pattern.len() => (pattern[p + 1] == c).then_some(p + 2),
        '[' => {
            let (hit, after) = set(pattern, p + 1, c);
            hit.then_some(after)
        }
        other => (other == c).then_some(p + 1),
    }
}

/// A set from behind its bracket; one that is not closed goes on to the end, as in Redis.
fn set(pattern: &[char], mut p: usize, c: char) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&'^');
    p += usize::from(negated);
    let mut hit = false;
    while let Some(&first) = pattern.get(p) {
        match (first, pattern.get(p + 1), pattern.get(p + 2)) {
            (']', ..) => return (hit != negated, p + 1),
            ('\\', Some(&quoted), _) => {
                hit |= quoted == c;
                p += 2;
            }
            (low, Some('-'), Some(&high)) if high != ']' => {
                hit |= (low.min(high)..=low.max(high)).contains(&c);
                p += 3;
            }
            (single, ..) => {
                hit |= single == c;
                p += 1;
            }
        }
    }
    (hit != negated, p)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "anything\nat all"),
            ("a*c", "abbbc"),
            ("a*b*c", "a-b-b-c"),
            ("h?llo", "hüllo"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]*", "hc"),
            ("\\*", "*"),
            ("[\\]]", "]"),
            ("**x", "xxx"),
            ("a[b", "ab"),
            ("{a}*", "{a}b"),
        ] {
            assert!(matches(pattern, text), "{pattern} should match {text}");
        }
        for (pattern, text) in
            [("", "a"), ("a", ""), ("a*c", "ab"), ("h[^e]llo", "hello"), ("\\*", "x"), ("?", "")]
        {
            assert!(!matches(pattern, text), "{pattern} should not match {text}");
        }
        // Not exponential.
        assert!(!matches(&"*a".repeat(50), &"a".repeat(49)));
    }
}
