//! Random ids, from the operating system's generator each time: a copy of a process or of a machine
//! must not draw the same ones (R24).

use crate::error::StoreError;
use lockwarden_core::{SessionId, Token};

/// A new token: unique per acquisition, unguessable.
pub(crate) fn token() -> Result<Token, StoreError> {
    Ok(Token::found(&digits()?))
}

/// A new session id.
pub(crate) fn session_id() -> Result<SessionId, StoreError> {
    Ok(SessionId::new(&text()?))
}

/// 128 random bits as text.
pub(crate) fn text() -> Result<String, StoreError> {
    Ok(digits()?.into_iter().map(char::from).collect())
}

/// So many digits stand for 128 bits. Few, for they travel with every command, and the server's scripts pay
/// for each byte.
const DIGITS: usize = 22;

fn digits() -> Result<[u8; DIGITS], StoreError> {
    // Base 64 of file names and URLs.
    const ALPHABET: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    let mut bytes = [0; 16];
    fill(&mut bytes)?;
    let mut bits = u128::from_ne_bytes(bytes);
    let mut digits = [0; DIGITS];
    // The first digit stands for the two bits that are left over: it is never one that makes an option of
    // the text.
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(bits % 64) as usize];
        bits /= 64;
    }
    Ok(digits)
}

/// A number from 0 to below `bound`, for jitter.
pub(crate) fn below(bound: u64) -> u64 {
    let mut bytes = [0_u8; 8];
    // Jitter only spreads load: without randomness nothing breaks but the spread.
    match fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes) % bound.max(1),
        Err(_) => 0,
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes).map_err(|error| StoreError::Invalid {
        detail: format!("the operating system gives no random bytes: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_words_that_no_program_takes_for_an_option() {
        let ids: std::collections::HashSet<String> = (0..1_000).map(|_| text().unwrap()).collect();
        assert_eq!(ids.len(), 1_000);
        for id in ids {
            assert!(
                id.len() == DIGITS && id.starts_with(|first: char| ('0'..='3').contains(&first)),
                "{id}"
            );
            assert!(
                id.chars().all(|it| it.is_ascii_alphanumeric() || matches!(it, '-' | '_')),
                "{id}"
            );
        }
    }
}
