//! The gate of a database: the documented statements, on real SQLite and real PostgreSQL.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod gate_support;
mod support;

use gate_support::sqlite;
use lockwarden::gate::{Error, MAX_FENCE, Stale, sql};
use lockwarden_testkit::{gates::documented, postgres::Postgres};
use postgres::{IsolationLevel, error::SqlState};
use rusqlite::{OptionalExtension, TransactionBehavior};
use std::{collections::HashMap, sync::OnceLock};
use support::{Dice, size};

/// A database, to which each client has a connection of its own.
enum Place {
    Sqlite(tempfile::TempDir),
    Postgres(Box<Postgres>),
}

enum Db {
    Sqlite(rusqlite::Connection),
    Postgres(postgres::Client),
}

impl Place {
    fn both() -> [Place; 2] {
        let server = Postgres::start();
        let tables = [documented("sql: table"), sql::CREATE_TABLE].join(";");
        server.client().batch_execute(&tables).unwrap();
        let dir = tempfile::tempdir().unwrap();
        sqlite(&dir.path().join("db")).execute(sql::CREATE_TABLE, ()).unwrap();
        [Place::Sqlite(dir), Place::Postgres(Box::new(server))]
    }

    fn db(&self) -> Db {
        match self {
            Place::Sqlite(dir) => Db::Sqlite(sqlite(&dir.path().join("db"))),
            Place::Postgres(server) => Db::Postgres(server.client()),
        }
    }
}

impl Db {
    /// Runs the documented UPDATE or upsert; refused if it affects no row.
    fn write(&mut self, mark: &str, id: &str, fence: u64) -> Result<(), Error> {
        let (statement, amount, number) =
            (documented(mark), fence.to_string(), sql::number(fence)?);
        let rows = match self {
            Db::Sqlite(db) => {
                u64::try_from(db.execute(statement, (amount, number, id)).unwrap()).unwrap()
            }
            Db::Postgres(db) => db.execute(statement, &[&amount, &number, &id]).unwrap(),
        };
        match rows {
            1 => Ok(()),
            0 => Err(sql::refused(id, fence, self.newest(documented("sql: newest"), id))),
            _ => panic!("{rows} rows"),
        }
    }

    fn newest(&mut self, statement: &str, id: &str) -> Option<i64> {
        match self {
            Db::Sqlite(db) => db.query_row(statement, [id], |row| row.get(0)).optional().unwrap(),
            Db::Postgres(db) => db.query_opt(statement, &[&id]).unwrap().map(|row| row.get(0)),
        }
    }

    fn amount(&mut self, id: &str) -> Option<String> {
        let statement = "SELECT amount FROM stock WHERE id = $1";
        match self {
            Db::Sqlite(db) => db.query_row(statement, [id], |row| row.get(0)).unwrap(),
            Db::Postgres(db) => db.query_one(statement, &[&id]).unwrap().get(0),
        }
    }

    fn insert(&mut self, id: &str) {
        let statement = "INSERT INTO stock (id) VALUES ($1)";
        match self {
            Db::Sqlite(db) => assert_eq!(db.execute(statement, [id]).unwrap(), 1),
            Db::Postgres(db) => assert_eq!(db.execute(statement, &[&id]).unwrap(), 1),
        }
    }

    /// A transaction behind the table of fences: it writes the row without a look at its fence.
    fn pass(&mut self, name: &str, fence: u64, id: &str) -> Result<(), Error> {
        let number = sql::number(fence)?;
        let amount = fence.to_string();
        let statement = "UPDATE stock SET amount = $1 WHERE id = $2";
        match self {
            Db::Sqlite(db) => {
                let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                if tx.execute(sql::PASS, (name, number)).unwrap() == 0 {
                    let newest = tx.query_row(sql::NEWEST, [name], |row| row.get(0));
                    return Err(sql::refused(name, fence, newest.optional().unwrap()));
                }
                assert_eq!(tx.execute(statement, (amount, id)).unwrap(), 1);
                tx.commit().unwrap();
            }
            Db::Postgres(db) => {
                let mut tx = db.transaction().unwrap();
                if tx.execute(sql::PASS, &[&name, &number]).unwrap() == 0 {
                    let newest = tx.query_opt(sql::NEWEST, &[&name]).unwrap();
                    return Err(sql::refused(name, fence, newest.map(|row| row.get(0))));
                }
                assert_eq!(tx.execute(statement, &[&amount, &id]).unwrap(), 1);
                tx.commit().unwrap();
            }
        }
        Ok(())
    }
}

fn stale<T>(fence: u64, newest: u64) -> Result<T, Error> {
    Err(Stale { fence, newest }.into())
}

#[test]
fn stale_is_refused_and_equal_passes() {
    for place in Place::both() {
        let mut db = place.db();
        assert_eq!(db.write("sql: update", "r", 5).unwrap_err().code(), "unfit", "no such row");
        db.write("sql: upsert", "new", 5).unwrap();
        db.insert("r");
        for (mark, id) in [("sql: update", "r"), ("sql: upsert", "new")] {
            db.write(mark, id, 5).unwrap();
            db.write(mark, id, 5).unwrap();
            db.write(mark, id, 7).unwrap();
            assert_eq!(db.write(mark, id, 6), stale(6, 7));
            assert_eq!(db.amount(id).as_deref(), Some("7"));
            assert_eq!(db.write(mark, id, 0).unwrap_err().code(), "invalid");
            assert_eq!(db.write(mark, id, u64::MAX).unwrap_err().code(), "invalid");
            // Of 8 bytes: larger than any whole number that a float would keep apart.
            db.write(mark, id, MAX_FENCE).unwrap();
            assert_eq!(db.write(mark, id, MAX_FENCE - 1), stale(MAX_FENCE - 1, MAX_FENCE));
        }
        db.pass("g", 5, "r").unwrap();
        db.pass("g", 5, "r").unwrap();
        db.pass("g", 7, "r").unwrap();
        assert_eq!(db.pass("g", 6, "r"), stale(6, 7));
        assert_eq!(db.newest(sql::NEWEST, "g"), Some(7), "rolled back");
        assert_eq!(db.newest(sql::NEWEST, "none"), None);
    }
}

#[test]
fn random_writes_match_the_comparison() {
    for place in Place::both() {
        let mut db = place.db();
        for row in 0..3 {
            db.insert(&format!("r{row}"));
        }
        let mut dice = Dice(13);
        let mut newest: HashMap<(u64, u64), u64> = HashMap::new();
        for _ in 0..size(5_000, 600) {
            let (way, row, fence) = (dice.below(3), dice.below(3), 1 + dice.below(300));
            // UPDATE and upsert of a row are one gate; the table of fences is another.
            let seen = newest.entry((u64::from(way == 2), row)).or_insert(0);
            let id = format!("r{row}");
            let result = match way {
                0 => db.write("sql: update", &id, fence),
                1 => db.write("sql: upsert", &id, fence),
                _ => db.pass(&id, fence, &id),
            };
            match result {
                Ok(()) => {
                    assert!(fence >= *seen);
                    *seen = fence;
                    assert_eq!(db.amount(&id), Some(fence.to_string()));
                }
                refused => assert_eq!(refused, stale(fence, *seen)),
            }
        }
    }
}

#[test]
fn clients_with_shuffled_fences_end_with_the_highest() {
    let (clients, rounds) = (8, size(100, 15));
    for place in Place::both() {
        let mut db = place.db();
        db.insert("update");
        db.insert("pass");
        std::thread::scope(|scope| {
            for client in 0..clients {
                let place = &place;
                scope.spawn(move || {
                    let mut db = place.db();
                    for round in 0..rounds {
                        let fence = 1 + (round * clients + client) * 37 % (rounds * clients);
                        for result in [
                            db.write("sql: update", "update", fence),
                            db.write("sql: upsert", "upsert", fence),
                            db.pass("pass", fence, "pass"),
                        ] {
                            assert!(matches!(result, Ok(()) | Err(Error::Stale(_))), "{result:?}");
                        }
                    }
                });
            }
        });
        let highest = Some((clients * rounds).to_string());
        for id in ["update", "upsert", "pass"] {
            assert_eq!(db.amount(id), highest, "{id}");
        }
    }
}

/// Under the stricter levels a writer that meets another gets an error, and never a silent pass.
#[test]
fn postgres_under_repeatable_read_answers_40001() {
    let server = Postgres::start();
    let (mut older, mut newer) = (server.client(), server.client());
    newer.batch_execute(documented("sql: table")).unwrap();
    newer.execute("INSERT INTO stock (id) VALUES ('r')", &[]).unwrap();
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        newer.execute("UPDATE stock SET fence = 0", &[]).unwrap();
        let mut tx = older.build_transaction().isolation_level(level).start().unwrap();
        tx.query_one("SELECT fence FROM stock", &[]).unwrap();
        let (update, write) = (documented("sql: update"), |fence: i64| ("v", fence, "r"));
        let (amount, fence, id) = write(7);
        newer.execute(update, &[&amount, &fence, &id]).unwrap();
        let (amount, fence, id) = write(6);
        let error = tx.execute(update, &[&amount, &fence, &id]).unwrap_err();
        assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
        tx.rollback().unwrap();
        assert_eq!(older.execute(update, &[&amount, &fence, &id]).unwrap(), 0);
    }
}

/// The sizes that docs/GATES.md promises for names.
#[test]
fn long_names_fit() {
    static LETTERS: OnceLock<String> = OnceLock::new();
    let name = LETTERS.get_or_init(|| {
        let mut dice = Dice(3);
        let letter = |_| {
            char::from(
                b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                    [usize::try_from(dice.below(62)).unwrap()],
            )
        };
        (0..2_600).map(letter).collect()
    });
    for place in Place::both() {
        let mut db = place.db();
        db.insert("r");
        db.pass(name, 7, "r").unwrap();
        assert_eq!(db.pass(name, 6, "r"), stale(6, 7));
    }
}

#[test]
fn the_page_has_the_librarys_statements() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(documented("sql: gate-table")), words(sql::CREATE_TABLE));
    assert_eq!(words(documented("sql: gate-pass")), words(sql::PASS));
}
