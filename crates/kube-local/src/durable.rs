//! The objects in a file, by redb.
//!
//! ```text
//!   Store ── Record, in the order of versions ──▶ a thread ── one transaction for all that wait ──▶ file
//!     ▲                                             │
//!     └── Progress ◀────────────────────────────────┘
//! ```
//!
//! A transaction is in the file as a whole or not at all, whenever the process or the
//! machine ends. Writes that arrive while one is committed share the next one, so a burst
//! of them does not wait for a disk each. The log of events is not kept: a watch from
//! before a restart gets 410 and lists again.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use tokio::sync::watch;

use super::store::{Journal, Key, Progress, Record, Store};

/// Collection, namespace and name → version and JSON.
const OBJECTS: TableDefinition<(&str, &str, &str), (u64, &[u8])> = TableDefinition::new("objects");
/// [`VERSION`] and [`FORMAT`].
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// The version of the last write, deletions included.
const VERSION: &str = "version";
/// Of the tables.
const FORMAT: &str = "format";
const PRESENT_FORMAT: u64 = 1;

/// Writes in one transaction, at most.
const MAX_BATCH: usize = 1_000;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process: end that one first, or choose another file", path.display())]
    InUse { path: PathBuf },
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: Box<redb::Error> },
    #[error("{} has the format {found}, and this version reads {PRESENT_FORMAT}: use the version that wrote it", path.display())]
    Format { path: PathBuf, found: u64 },
    #[error("cannot start the thread that writes {}: {source}", path.display())]
    Thread { path: PathBuf, source: std::io::Error },
}

/// The store of a file.
pub(super) fn open(path: &Path) -> Result<Store, OpenError> {
    let failed = |source: redb::Error| OpenError::Open { path: path.to_owned(), source: Box::new(source) };
    let database = Database::create(path).map_err(|error| match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path: path.to_owned() },
        error => failed(error.into()),
    })?;
    let format = prepare(&database).map_err(failed)?;
    if format != PRESENT_FORMAT {
        return Err(OpenError::Format { path: path.to_owned(), found: format });
    }
    let (kept, version) = read(&database).map_err(failed)?;
    let (send, records) = mpsc::channel();
    let (progress, watched) = watch::channel(Progress { version, failure: None });
    thread::Builder::new()
        .name("durable-store".to_owned())
        .spawn(move || write_all(&database, &records, &progress))
        .map_err(|source| OpenError::Thread { path: path.to_owned(), source })?;
    Ok(Store::restored(kept, version, Box::new(Writer { send, progress: watched })))
}

/// Makes the tables of a new file. Returns the format.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let format = {
        transaction.open_table(OBJECTS)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let held = numbers.get(FORMAT)?.map(|format| format.value());
        if held.is_none() {
            numbers.insert(FORMAT, PRESENT_FORMAT)?;
        }
        held.unwrap_or(PRESENT_FORMAT)
    };
    transaction.commit()?;
    Ok(format)
}

fn read(database: &Database) -> Result<(Vec<Record>, u64), redb::Error> {
    let transaction = database.begin_read()?;
    let version = transaction.open_table(NUMBERS)?.get(VERSION)?.map_or(0, |version| version.value());
    let mut kept = Vec::new();
    for entry in transaction.open_table(OBJECTS)?.iter()? {
        let (key, value) = entry?;
        let ((collection, namespace, name), (of_object, json)) = (key.value(), value.value());
        kept.push(Record {
            collection: collection.to_owned(),
            key: Key::new(namespace, name),
            version: of_object,
            object: Some(Bytes::copy_from_slice(json)),
        });
    }
    Ok((kept, version))
}

/// Hands records to the thread.
struct Writer {
    send: mpsc::Sender<Record>,
    progress: watch::Receiver<Progress>,
}

impl Journal for Writer {
    fn append(&self, record: Record) {
        // A thread that has ended has reported why.
        let _ = self.send.send(record);
    }

    fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }
}

/// Until the store is dropped, or the file cannot be written.
fn write_all(database: &Database, records: &mpsc::Receiver<Record>, progress: &watch::Sender<Progress>) {
    while let Ok(first) = records.recv() {
        let batch: Vec<Record> = std::iter::once(first).chain(records.try_iter().take(MAX_BATCH)).collect();
        let Some(version) = batch.last().map(|last| last.version) else { continue };
        match write(database, &batch, version) {
            Ok(()) => progress.send_modify(|at| at.version = version),
            // What is in memory and what is in the file differ from now on.
            Err(error) => {
                return progress.send_modify(|at| at.failure = Some(error.to_string().into()));
            }
        }
    }
}

/// One transaction, which is on disk when this returns.
fn write(database: &Database, batch: &[Record], version: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for Record { collection, key, version, object } in batch {
            let key = (collection.as_str(), &*key.namespace, &*key.name);
            match object {
                Some(json) => _ = objects.insert(key, (*version, &json[..]))?,
                None => _ = objects.remove(key)?,
            }
        }
        transaction.open_table(NUMBERS)?.insert(VERSION, version)?;
    }
    transaction.commit()?;
    Ok(())
}
