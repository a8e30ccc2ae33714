//! The store's format, as the steps that made it. A step, once released, is never changed.

use std::path::Path;

use rusqlite::Connection;

use super::StoreError;

const STEPS: &[&str] = &[
    "
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    owner INTEGER NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    submitted_ns INTEGER NOT NULL,
    ended_ns INTEGER,
    trials_total INTEGER NOT NULL,
    trials_done INTEGER NOT NULL DEFAULT 0,
    trials_failed INTEGER NOT NULL DEFAULT 0,
    record TEXT NOT NULL
) STRICT;
CREATE TABLE trial (
    job INTEGER NOT NULL REFERENCES job(id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (job, number)
) STRICT;
CREATE TABLE samples (
    job INTEGER NOT NULL,
    trial INTEGER NOT NULL,
    member INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (job, trial, member),
    FOREIGN KEY (job, trial) REFERENCES trial(job, number) ON DELETE CASCADE
) STRICT;
",
    "
ALTER TABLE job ADD COLUMN layout TEXT;
",
];

/// Brings a store to the present format, each step whole or not at all.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let found: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|source| StoreError::Open(path.to_path_buf(), source))?;
    if found > known {
        return Err(StoreError::Newer { path: path.to_path_buf(), found, known });
    }
    for (step, to) in STEPS.iter().zip(1..).skip(usize::try_from(found).unwrap_or(0)) {
        let apply = |connection: &mut Connection| {
            let transaction = connection.transaction()?;
            transaction.execute_batch(step)?;
            transaction.pragma_update(None, "user_version", to)?;
            transaction.commit()
        };
        apply(connection).map_err(|source| StoreError::Migrate(to, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    #[test]
    fn a_store_opens_again_and_a_newer_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        drop(Store::open(directory.path()).unwrap());
        drop(Store::open(directory.path()).unwrap());
        let connection = Connection::open(directory.path().join("migperf.sqlite3")).unwrap();
        connection.pragma_update(None, "user_version", 999).unwrap();
        drop(connection);
        assert!(matches!(Store::open(directory.path()), Err(StoreError::Newer { found: 999, .. })));
    }
}
