//! Measured tables of others (CSV, as MIGPerf writes them), read and held against what latency allows. Files are read
//! elsewhere; nothing here makes a record or a report of them, because batches are what those are made of.

use std::collections::HashMap;
use std::num::ParseFloatError;

use serde::Serialize;

use crate::report::{Flag, closed_loop_disagreement};

/// A larger contradiction between throughput and latency is flagged, as in trials.
const DISAGREEMENT: f64 = 0.05;
/// Items in flight that differ by less than this share from each other are the same number.
const SAME: f64 = 0.01;

/// Why a table can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// There is no header.
    #[error("the table is empty; it must begin with a header")]
    Empty,
    /// A column is missing.
    #[error("the header has no column `{0}`")]
    NoColumn(&'static str),
    /// A row is not as long as the header.
    #[error("line {line} has {found} fields, the header has {wanted}")]
    Ragged {
        /// From 1, the header included.
        line: usize,
        /// Fields of the row.
        found: usize,
        /// Fields of the header.
        wanted: usize,
    },
    /// A quoted field.
    #[error("line {0} has a quoted field, which these tables never have")]
    Quoted(usize),
    /// A number is not one.
    #[error("line {line}: `{text}` is no {column}")]
    Number {
        /// From 1, the header included.
        line: usize,
        /// The column.
        column: &'static str,
        /// What is there.
        text: String,
        /// What is wrong with it.
        #[source]
        source: ParseFloatError,
    },
    /// A batch size is no positive whole number.
    #[error("line {line}: a batch size of {text} is none")]
    BatchSize {
        /// From 1, the header included.
        line: usize,
        /// What is there.
        text: String,
    },
}

/// One row of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportedRow {
    /// Its line in the file, from 1, the header included.
    pub line: usize,
    /// The model, as the table names it.
    pub model: String,
    /// The MIG profile, as the table names it.
    pub profile: String,
    /// Items in a batch.
    pub batch_size: u32,
    /// Tokens in an item; null where the table has no such column.
    pub sequence_length: Option<u32>,
    /// Mean milliseconds of a batch; null where nothing was measured.
    pub latency_ms: Option<f64>,
    /// Items per second, as the table has it; null where nothing was measured.
    pub throughput_samples_per_s: Option<f64>,
    /// By how much that exceeds batch size over latency, as a share: 0 in a closed loop of one batch at a time.
    pub disagreement: Option<f64>,
    /// What is wrong with the row.
    pub flags: Vec<Flag>,
}

/// A table that was read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportedTable {
    /// In the order of the file.
    pub rows: Vec<ImportedRow>,
    /// Rows with a measurement.
    pub measured: usize,
    /// Rows whose throughput and latency contradict each other.
    pub flagged: usize,
    /// Throughput × latency, in items, if rows contradict themselves and it is the same in all of them: as if the rates
    /// had been computed with that number in the place of the batch size. Which of the two columns is wrong a table
    /// can't say.
    pub items_in_flight: Option<f64>,
}

impl ImportedTable {
    /// Reads a table with at least the columns `model_name`, `batch_size`, `latency` (ms), `throughput` (items per
    /// second) and `mig_profile`; `seq_length` is read where there is one, other columns are not.
    ///
    /// # Errors
    ///
    /// See [`ImportError`]. A latency or throughput that is zero, negative or not finite is no error but no measurement.
    pub fn read(text: &str) -> Result<Self, ImportError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let (_, header) = lines.next().ok_or(ImportError::Empty)?;
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let places: HashMap<&str, usize> = names.iter().enumerate().map(|(place, name)| (*name, place)).collect();
        let place = |name: &'static str| places.get(name).copied().ok_or(ImportError::NoColumn(name));
        let (model, batch, profile) = (place("model_name")?, place("batch_size")?, place("mig_profile")?);
        let (latency, throughput) = (place("latency")?, place("throughput")?);
        let sequence = places.get("seq_length").copied();
        let mut rows = Vec::new();
        for (index, line) in lines {
            let line_number = index + 1;
            if line.contains('"') {
                return Err(ImportError::Quoted(line_number));
            }
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            if fields.len() != names.len() {
                let (found, wanted) = (fields.len(), names.len());
                return Err(ImportError::Ragged { line: line_number, found, wanted });
            }
            let batch_size = match fields[batch].parse() {
                Ok(size) if size > 0 => size,
                _ => return Err(ImportError::BatchSize { line: line_number, text: fields[batch].to_owned() }),
            };
            let latency_ms = measured(fields[latency], line_number, "latency")?;
            let rate = measured(fields[throughput], line_number, "throughput")?;
            let disagreement =
                latency_ms.zip(rate).map(|(latency, rate)| closed_loop_disagreement(rate, batch_size, latency, 0.0));
            let wrong = disagreement.is_some_and(|off| !off.is_finite() || off.abs() > DISAGREEMENT);
            rows.push(ImportedRow {
                line: line_number,
                model: fields[model].to_owned(),
                profile: fields[profile].to_owned(),
                batch_size,
                sequence_length: sequence.and_then(|place| fields[place].parse().ok()),
                latency_ms,
                throughput_samples_per_s: rate,
                disagreement,
                flags: if wrong { vec![Flag::ThroughputLatency] } else { Vec::new() },
            });
        }
        let measured = rows.iter().filter(|row| row.disagreement.is_some()).count();
        let flagged = rows.iter().filter(|row| !row.flags.is_empty()).count();
        let items_in_flight = if flagged > 0 { items_in_flight(&rows) } else { None };
        Ok(Self { rows, measured, flagged, items_in_flight })
    }
}

/// A number that was measured.
fn measured(text: &str, line: usize, column: &'static str) -> Result<Option<f64>, ImportError> {
    if text.is_empty() {
        return Ok(None);
    }
    let number: f64 =
        text.parse().map_err(|source| ImportError::Number { line, column, text: text.to_owned(), source })?;
    Ok(Some(number).filter(|number| number.is_finite() && *number > 0.0))
}

/// Throughput × latency (Little's law), if it is the same in all rows.
fn items_in_flight(rows: &[ImportedRow]) -> Option<f64> {
    let product = |row: &ImportedRow| Some(row.throughput_samples_per_s? * row.latency_ms? / 1e3);
    let products: Vec<f64> = rows.iter().filter_map(product).collect();
    let mean = products.iter().sum::<f64>() / products.len() as f64;
    (products.len() > 1 && products.iter().all(|one| (one / mean - 1.0).abs() <= SAME)).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "model_name,batch_size,latency,throughput,mig_profile\n";

    fn table(rows: &str) -> Result<ImportedTable, ImportError> {
        ImportedTable::read(&format!("{HEADER}{rows}"))
    }

    #[test]
    fn measured_tables_agree_but_for_language_models() {
        let check = |text: &str, rows: usize, measured: usize, flagged: usize| {
            let table = ImportedTable::read(text).unwrap();
            assert_eq!((table.rows.len(), table.measured, table.flagged), (rows, measured, flagged));
            table
        };
        let vision = check(include_str!("../tests/data/a100-80g/infer-cv-integrated_result.csv"), 72, 72, 0);
        assert_eq!(vision.items_in_flight, None);
        let vision = check(include_str!("../tests/data/a100-80g/train-cv-integrated_result.csv"), 24, 21, 0);
        assert_eq!(vision.rows.iter().filter(|row| row.latency_ms.is_none()).count(), 3);
        // Every rate is 3 / latency, whatever the batch size.
        for (text, rows, measured) in [
            (include_str!("../tests/data/a100-80g/infer-nlp-integrated_result_bsz.csv"), 36, 36),
            (include_str!("../tests/data/a100-80g/infer-nlp-integrated_result_seq.csv"), 20, 20),
            (include_str!("../tests/data/a100-80g/train-nlp-integrated_result_bsz.csv"), 24, 23),
            (include_str!("../tests/data/a100-80g/train-nlp-integrated_result_seq.csv"), 20, 18),
        ] {
            let table = check(text, rows, measured, measured);
            assert!((table.items_in_flight.unwrap() - 3.0).abs() < 0.01);
        }
    }

    #[test]
    fn one_wrong_row_is_found_and_no_rule_is_made_of_it() {
        let table = table("a,8,10,800,7g.80gb\na,8,10,841,1g.10gb\na,8,10,839,1g.10gb\n").unwrap();
        assert_eq!(table.flagged, 1);
        assert_eq!(table.rows[1].flags, [Flag::ThroughputLatency]);
        assert_eq!(table.items_in_flight, None);
    }

    #[test]
    fn what_was_not_measured_is_missing_and_not_zero() {
        let table = table("a,8,0,0,7g.80gb\na,8,nan,10,7g.80gb\na,8,,,7g.80gb\n").unwrap();
        assert_eq!((table.measured, table.flagged), (0, 0));
        assert!(table.rows.iter().all(|row| row.latency_ms.is_none() && row.disagreement.is_none()));
    }

    #[test]
    fn tables_that_are_none_are_refused_with_their_place() {
        assert_eq!(ImportedTable::read(" \n"), Err(ImportError::Empty));
        assert_eq!(ImportedTable::read("model_name,latency\n"), Err(ImportError::NoColumn("batch_size")));
        assert_eq!(table("a,8,10\n"), Err(ImportError::Ragged { line: 2, found: 3, wanted: 5 }));
        assert_eq!(table("\"a\",8,10,800,7g\n"), Err(ImportError::Quoted(2)));
        assert_eq!(table("a,0,10,800,7g\n"), Err(ImportError::BatchSize { line: 2, text: "0".to_owned() }));
        assert!(matches!(table("a,8,fast,800,7g\n"), Err(ImportError::Number { line: 2, column: "latency", .. })));
    }
}
