//! The gate of an SQL database: one statement compares the fence and writes.
//!
//! **A row** that carries its newest fence itself, in a column `fence BIGINT NOT NULL DEFAULT 0`:
//!
//! ```sql
//! UPDATE stock SET amount = $1, fence = $2 WHERE id = $3 AND fence <= $2
//! ```
//!
//! No row affected: stale, or there is no such row; [`refused`] says which. The statement is atomic, so
//! nothing else is needed. Every writer of the row must write like this. `docs/GATES.md` has the upsert,
//! and what PostgreSQL, SQLite and MySQL say of affected rows.
//!
//! **Anything else** in the database: a table of fences, and [`PASS`] as the first statement of the
//! transaction that writes. It keeps the gate's row until the end of the transaction, so that holders
//! pass one after the other.
//!
//! ```
//! use lockwarden::gate::{Error, sql};
//! use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
//!
//! let mut db = Connection::open_in_memory()?;
//! db.execute(sql::CREATE_TABLE, ())?;
//! let mut write = |fence: u64| -> Result<(), Box<dyn std::error::Error>> {
//!     let fence_number = sql::number(fence)?;
//!     let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//!     if tx.execute(sql::PASS, ("orders", fence_number))? == 0 {
//!         let newest = tx.query_row(sql::NEWEST, ["orders"], |row| row.get(0)).optional()?;
//!         return Err(sql::refused("orders", fence, newest).into()); // and rolls back
//!     }
//!     // … the writes …
//!     tx.commit()?;
//!     Ok(())
//! };
//! write(5)?;
//! write(5)?; // the same grant
//! write(7)?;
//! assert!(write(6).unwrap_err().to_string().contains("fence 6 is stale: the resource has seen 7"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{Error, MAX_FENCE, Stale, valid};

/// The table of fences, a row per gate. PostgreSQL and SQLite.
pub const CREATE_TABLE: &str = "CREATE TABLE IF NOT EXISTS lockwarden_gate \
    (name TEXT NOT NULL PRIMARY KEY, fence BIGINT NOT NULL CHECK (fence > 0))";

/// Passes the gate `$1` with the fence `$2`: one row is affected, or none if the fence is stale.
/// PostgreSQL, and SQLite from 3.24. To be followed by the writes, in the same transaction.
pub const PASS: &str = "INSERT INTO lockwarden_gate (name, fence) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET fence = excluded.fence \
    WHERE excluded.fence >= lockwarden_gate.fence";

/// The newest fence that the gate `$1` has seen; no row: none.
pub const NEWEST: &str = "SELECT fence FROM lockwarden_gate WHERE name = $1";

/// The fence as a parameter of a statement.
///
/// # Errors
/// [`Error::Invalid`] for a fence that no grant has.
pub fn number(fence: u64) -> Result<i64, Error> {
    valid(fence)?;
    // Not reached: a valid fence is under 2^53.
    i64::try_from(fence).map_err(|_| Error::invalid("fence", "it does not fit into a BIGINT"))
}

/// Why a gated statement affected no row; `newest` is the fence that is read afterwards, in the same
/// transaction if there is one, and none if there is no row or no fence in it.
#[must_use]
pub fn refused(place: &str, fence: u64, newest: Option<i64>) -> Error {
    let place = place.to_owned();
    if let Err(error) = valid(fence) {
        return error;
    }
    match newest.map(u64::try_from) {
        Some(Ok(newest)) if newest > MAX_FENCE => {
            Error::Unfit { place, why: format!("{newest} in the place of its fence is none") }
        }
        Some(Ok(newest)) if newest > fence => Stale { fence, newest }.into(),
        // It was written, deleted or inserted since; or MySQL counts only rows that it changed.
        Some(Ok(_)) => Error::Unavailable {
            place,
            why: "the row has changed between the statement and this look at it".into(),
        },
        Some(Err(_)) => Error::Unfit { place, why: "a negative number is no fence".into() },
        None => Error::Unfit {
            place,
            why: "there is no such row, or its fence is NULL; insert it with fence 0".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_has_its_reason() {
        assert_eq!(refused("r", 6, Some(7)), Stale { fence: 6, newest: 7 }.into());
        assert_eq!(refused("r", 6, None).code(), "unfit");
        assert_eq!(refused("r", 6, Some(-1)).code(), "unfit");
        assert_eq!(refused("r", 6, Some(i64::MAX)).code(), "unfit");
        for newest in [0, 5, 6] {
            assert_eq!(refused("r", 6, Some(newest)).code(), "unavailable");
        }
        assert_eq!(refused("r", 0, Some(7)).code(), "invalid");
    }

    #[test]
    fn bad_fences_are_typed_errors() {
        assert_eq!(number(MAX_FENCE), Ok(9_007_199_254_740_991));
        for fence in [0, MAX_FENCE + 1, u64::MAX] {
            assert_eq!(number(fence).unwrap_err().code(), "invalid");
        }
    }
}
