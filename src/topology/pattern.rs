//! Routing keys and topic patterns: does this key match, can one key match both? (Pure; RabbitMQ's rules.)

/// True if the topic pattern matches the key: `*` is one word, `#` any number of words.
pub(super) fn matches(pattern: &str, key: &str) -> bool {
    // A key without wildcards is a pattern that matches itself; words of a key are never wildcards.
    meet_words(&words(pattern), &words(key), false)
}

/// True if some key matches both patterns.
pub(super) fn meet(a: &str, b: &str) -> bool {
    meet_words(&words(a), &words(b), true)
}

/// True if the pattern has a `*` or `#` that stands beside other letters, where it matches only itself.
pub(super) fn has_odd_wildcard(pattern: &str) -> bool {
    words(pattern).iter().any(|word| word.len() > 1 && word.contains(['*', '#']))
}

fn words(text: &str) -> Vec<&str> {
    text.split('.').collect()
}

/// Dynamic programming over both word lists: `table[i][j]` says whether the first `i` words of `a` and the first `j`
/// of `b` can be the same key. (Recursion would take exponential time on `#.#.#…`.)
fn meet_words(a: &[&str], b: &[&str], b_is_pattern: bool) -> bool {
    let hash_b = |word: &str| b_is_pattern && word == "#";
    let mut before = vec![false; b.len() + 1];
    for i in 0..=a.len() {
        let mut row = vec![false; b.len() + 1];
        for j in 0..=b.len() {
            row[j] = match (i.checked_sub(1).map(|i| a[i]), j.checked_sub(1).map(|j| b[j])) {
                (None, None) => true,
                (None, Some(word)) => row[j - 1] && hash_b(word),
                (Some(word), None) => before[j] && word == "#",
                (Some(x), Some(y)) => {
                    let same = x == y || x == "*" || (b_is_pattern && y == "*");
                    ((x == "#" || hash_b(y)) && (before[j] || row[j - 1] || before[j - 1])) || (same && before[j - 1])
                }
            };
        }
        before = row;
    }
    before.last().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_rabbitmq() {
        for (pattern, key, yes) in [
            ("order.*.close", "order.7.close", true),
            ("order.*.close", "order.close", false),
            ("order.#", "order", true),
            ("order.#", "order.a.b", true),
            ("#", "", true),
            ("#.close", "close", true),
            ("*", "", true),
            ("*", "a.b", false),
            ("a.#.b", "a.b", true),
            ("a.#.b", "a.x.y.b", true),
            ("a.#.b", "a.x.y.c", false),
            ("a", "*", false),
        ] {
            assert_eq!(matches(pattern, key), yes, "{pattern} and {key}");
        }
    }

    #[test]
    fn two_patterns_meet_where_one_key_fits_both() {
        for (a, b, yes) in [
            ("a.*", "*.b", true),
            ("a.*", "b.*", false),
            ("a.#", "#.b", true),
            ("a.b", "a.*", true),
            ("a.b", "a.b.c", false),
            ("#", "x.y", true),
            ("a.*.c", "a.c", false),
        ] {
            assert_eq!(meet(a, b), yes, "{a} and {b}");
            assert_eq!(meet(b, a), yes, "{b} and {a}");
        }
    }

    #[test]
    fn many_hashes_take_no_exponential_time() {
        let pattern = ["#"; 120].join(".");
        assert!(!meet(&format!("{pattern}.a"), &format!("{pattern}.b")));
    }
}
