//! Rows of Parquet files, as the JSON values that the same rows would be in a JSON file.
//!
//! A file's footer says how many rows each row group has, so opening reads nothing else. Rows are put together from the
//! columns of one group at a time, a batch of values at a time.
//!
//! Values:  text, numbers, booleans, lists, structs as objects, maps as objects, null. Binary columns are text where they
//!          are UTF-8, else null. Dates and times are the numbers stored. Decimals, intervals and 96-bit times are null,
//!          as are numbers that JSON does not have.
//! Source:  definition and repetition levels of the Dremel paper, lists and maps as in the format's `LogicalTypes.md`.
//! Errors:  `Error::Io`, `Error::Parquet`. Panics: never; the reading library panics on some broken files, which is caught.
//! Checked: `tests/parquet.rs`.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use parquet::basic::{ConvertedType, Repetition};
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, Type};
use serde_json::{Map, Value};

use crate::rows::Place;
use crate::{Error, Result};

/// Records read from a column at a time.
const BATCH: usize = 512;
/// Deepest nesting of a schema.
const MAX_DEPTH: usize = 64;

thread_local! {
    /// Whether this thread is in the library.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// An opened file: how many rows its groups have.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    path: PathBuf,
    groups: Vec<usize>,
}

impl ParquetFile {
    /// Reads the footer.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Self { path: path.to_owned(), groups: Vec::new() };
        let reader = file.reader()?;
        let mut groups = Vec::new();
        let mut total = 0_usize;
        for group in reader.metadata().row_groups() {
            let rows = usize::try_from(group.num_rows()).ok();
            let sum = rows.and_then(|rows| total.checked_add(rows));
            total = sum.ok_or_else(|| file.fault(format!("a row group says that it has {} rows", group.num_rows())))?;
            groups.extend(rows);
        }
        Ok(Self { groups, ..file })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.groups.iter().sum()
    }

    /// Hands each row of a range to `visit` with its number, from 0.
    pub fn read(
        &self,
        range: Range<usize>,
        visit: &mut impl FnMut(usize, Map<String, Value>) -> Result<()>,
    ) -> Result<()> {
        let reader = self.reader()?;
        let mut start = 0;
        for (index, &rows) in self.groups.iter().enumerate() {
            let (from, to) = (range.start.max(start), range.end.min(start + rows));
            if from < to {
                let mut group = self.guarded(|| Group::open(&reader, index, from - start))?;
                for row in from..to {
                    visit(row, self.guarded(|| group.row())?)?;
                }
            }
            start += rows;
        }
        Ok(())
    }

    fn reader(&self) -> Result<SerializedFileReader<File>> {
        let file = File::open(&self.path).map_err(|cause| Error::Io { path: self.path.clone(), cause })?;
        self.guarded(|| SerializedFileReader::new(file))
    }

    /// Calls the library. On some broken files it fails an assertion in place of giving an error: then nothing is printed
    /// and what was being read is dropped.
    fn guarded<T>(&self, call: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if !GUARDED.get() {
                    previous(info);
                }
            }));
        });
        GUARDED.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(call));
        GUARDED.set(false);
        match outcome {
            Ok(result) => result.map_err(|cause| self.fault(cause.to_string())),
            Err(_) => Err(self.fault("the file is broken".to_owned())),
        }
    }

    fn fault(&self, reason: String) -> Error {
        Error::Parquet { path: self.path.clone(), reason }
    }
}

impl Place {
    /// Row `row` of a Parquet file, from 0.
    pub(crate) fn in_parquet(file: &std::sync::Arc<Path>, row: usize) -> Self {
        Self { file: file.clone(), line: 0, row: Some(row as u64 + 1) }
    }
}

/// The columns of a row group, at the next row.
struct Group {
    fields: Vec<(String, Shape)>,
    columns: Vec<Column>,
}

impl Group {
    /// Opens a group and passes over its first `skip` rows.
    fn open(reader: &SerializedFileReader<File>, index: usize, skip: usize) -> parquet::errors::Result<Self> {
        let group = reader.get_row_group(index)?;
        let schema = group.metadata().schema_descr_ptr();
        let mut num_leaves = 0;
        let mut fields = Vec::new();
        for field in schema.root_schema().get_fields() {
            let levels = Levels { def: 0, rep: 0, depth: 0 };
            fields.push((field.name().to_owned(), Shape::of(field, levels, &mut num_leaves)?));
        }
        let mut columns = Vec::with_capacity(num_leaves);
        for leaf in 0..group.num_columns() {
            columns.push(Column::new(group.get_column_reader(leaf)?, &schema.column(leaf), skip)?);
        }
        if columns.len() != num_leaves {
            return Err(general(format!(
                "expected {num_leaves} columns in row group {index}, found {}",
                columns.len()
            )));
        }
        Ok(Self { fields, columns })
    }

    fn row(&mut self) -> parquet::errors::Result<Map<String, Value>> {
        let columns = &mut self.columns;
        self.fields.iter().map(|(name, shape)| Ok((name.clone(), shape.read(columns)?))).collect()
    }
}

/// Levels of a node of the schema: how many of its ancestors may be absent, and how many are repeated.
#[derive(Clone, Copy)]
struct Levels {
    def: i16,
    rep: i16,
    depth: usize,
}

/// How a value is put together from the columns.
enum Shape {
    /// A column's value.
    Leaf(usize),
    /// Null where the definition level stays below `def`.
    Optional { def: i16, inner: Box<Shape> },
    /// An object.
    Struct(Vec<(String, Shape)>),
    /// No element where the definition level stays below `def`; an element more for each repetition level `rep`.
    List { def: i16, rep: i16, inner: Box<Shape> },
    /// A list of objects `key`, `value`.
    Map(Box<Shape>),
}

impl Shape {
    /// The shape of a node below another with `levels`.
    fn of(node: &Type, levels: Levels, leaf: &mut usize) -> parquet::errors::Result<Self> {
        let info = node.get_basic_info();
        let repetition = if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED };
        let Levels { mut def, mut rep, depth } = levels;
        if depth > MAX_DEPTH {
            return Err(general(format!("expected at most {MAX_DEPTH} levels of nesting")));
        }
        def += i16::from(repetition != Repetition::REQUIRED);
        rep += i16::from(repetition == Repetition::REPEATED);
        let inner = Self::without_repetition(node, Levels { def, rep, depth: depth + 1 }, leaf)?;
        Ok(match repetition {
            Repetition::REQUIRED => inner,
            Repetition::OPTIONAL => Self::Optional { def, inner: Box::new(inner) },
            Repetition::REPEATED => Self::List { def, rep, inner: Box::new(inner) },
        })
    }

    /// The shape of a node, given that it is there.
    fn without_repetition(node: &Type, levels: Levels, leaf: &mut usize) -> parquet::errors::Result<Self> {
        if node.is_primitive() {
            *leaf += 1;
            return Ok(Self::Leaf(*leaf - 1));
        }
        let fields = node.get_fields();
        if fields.is_empty() {
            return Err(general(format!("group `{}` has no fields", node.name())));
        }
        let is_repeated = |node: &Type| {
            node.get_basic_info().has_repetition() && node.get_basic_info().repetition() == Repetition::REPEATED
        };
        match (node.get_basic_info().converted_type(), fields) {
            (ConvertedType::LIST, [repeated]) if is_repeated(repeated) => {
                Self::list(repeated, levels, leaf, is_element(repeated))
            }
            (ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE, [repeated])
                if is_repeated(repeated) && repeated.is_group() && repeated.get_fields().len() == 2 =>
            {
                Ok(Self::Map(Box::new(Self::list(repeated, levels, leaf, true)?)))
            }
            _ => {
                let fields = fields.iter().map(|field| Ok((field.name().to_owned(), Self::of(field, levels, leaf)?)));
                Ok(Self::Struct(fields.collect::<parquet::errors::Result<_>>()?))
            }
        }
    }

    /// A list whose elements are the repeated node itself, or the only field of it.
    fn list(repeated: &Type, levels: Levels, leaf: &mut usize, is_element: bool) -> parquet::errors::Result<Self> {
        let Levels { def, rep, depth } = levels;
        let (def, rep) = (def + 1, rep + 1);
        let levels = Levels { def, rep, depth: depth + 1 };
        let inner = match repeated.is_group().then(|| repeated.get_fields()) {
            Some([element]) if !is_element => Self::of(element, levels, leaf)?,
            _ => Self::without_repetition(repeated, levels, leaf)?,
        };
        Ok(Self::List { def, rep, inner: Box::new(inner) })
    }

    /// Takes the next value.
    fn read(&self, columns: &mut [Column]) -> parquet::errors::Result<Value> {
        match self {
            Self::Leaf(leaf) => columns[*leaf].next(),
            Self::Optional { def, inner } => {
                if inner.peek(columns)?.0 < *def {
                    inner.skip(columns)?;
                    return Ok(Value::Null);
                }
                inner.read(columns)
            }
            Self::Struct(fields) => {
                let fields = fields.iter().map(|(name, shape)| Ok((name.clone(), shape.read(columns)?)));
                Ok(Value::Object(fields.collect::<parquet::errors::Result<_>>()?))
            }
            Self::List { def, rep, inner } => {
                let mut elements = Vec::new();
                if inner.peek(columns)?.0 < *def {
                    inner.skip(columns)?;
                    return Ok(Value::Array(elements));
                }
                loop {
                    elements.push(inner.read(columns)?);
                    let column = &mut columns[inner.first_leaf()];
                    if column.is_at_end()? || column.peek()?.1 < *rep {
                        return Ok(Value::Array(elements));
                    }
                }
            }
            Self::Map(list) => Ok(object_of(list.read(columns)?)),
        }
    }

    /// Takes what stands for a missing value: one entry of every column below.
    fn skip(&self, columns: &mut [Column]) -> parquet::errors::Result<()> {
        match self {
            Self::Leaf(leaf) => columns[*leaf].next().map(|_| ()),
            Self::Optional { inner, .. } | Self::List { inner, .. } | Self::Map(inner) => inner.skip(columns),
            Self::Struct(fields) => fields.iter().try_for_each(|(_, shape)| shape.skip(columns)),
        }
    }

    /// Definition and repetition level of the next value, by the first column below, which has those of its ancestors too.
    fn peek(&self, columns: &mut [Column]) -> parquet::errors::Result<(i16, i16)> {
        columns[self.first_leaf()].peek()
    }

    fn first_leaf(&self) -> usize {
        match self {
            Self::Leaf(leaf) => *leaf,
            Self::Optional { inner, .. } | Self::List { inner, .. } | Self::Map(inner) => inner.first_leaf(),
            // A group without fields is no shape.
            Self::Struct(fields) => fields.first().map_or(0, |(_, shape)| shape.first_leaf()),
        }
    }
}

/// Whether the repeated node of a list is its element, as old writers have it, and not a level of its own.
fn is_element(repeated: &Type) -> bool {
    repeated.is_primitive()
        || repeated.get_fields().len() != 1
        || repeated.name() == "array"
        || repeated.name().ends_with("_tuple")
}

/// Pairs of a key and a value as an object; keys that are no text are written as JSON.
fn object_of(pairs: Value) -> Value {
    let Value::Array(pairs) = pairs else { return pairs };
    let entries = pairs.into_iter().filter_map(|pair| {
        let Value::Object(pair) = pair else { return None };
        let mut fields = pair.into_iter().map(|(_, field)| field);
        let key = fields.next()?;
        let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
        Some((key, fields.next().unwrap_or(Value::Null)))
    });
    Value::Object(entries.collect())
}

/// A leaf's entries: levels, and a value where the definition level is the highest.
struct Column {
    reader: ColumnReader,
    max_def: i16,
    max_rep: i16,
    kind: Kind,
    defs: Vec<i16>,
    reps: Vec<i16>,
    values: std::vec::IntoIter<Value>,
    at: usize,
    len: usize,
}

/// What a column's bits stand for beyond its physical type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What they are.
    Plain,
    /// Integers without a sign.
    Unsigned,
    /// Nothing that JSON has.
    Opaque,
}

impl Column {
    fn new(mut reader: ColumnReader, descriptor: &ColumnDescriptor, skip: usize) -> parquet::errors::Result<Self> {
        let skipped = skip_records(&mut reader, skip)?;
        if skipped < skip {
            return Err(general(format!("column `{}` ends after {skipped} rows", descriptor.path())));
        }
        let kind = match descriptor.converted_type() {
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64 => {
                Kind::Unsigned
            }
            ConvertedType::DECIMAL | ConvertedType::INTERVAL => Kind::Opaque,
            _ => Kind::Plain,
        };
        Ok(Self {
            reader,
            max_def: descriptor.max_def_level(),
            max_rep: descriptor.max_rep_level(),
            kind,
            defs: Vec::new(),
            reps: Vec::new(),
            values: Vec::new().into_iter(),
            at: 0,
            len: 0,
        })
    }

    /// Whether no entry is left.
    fn is_at_end(&mut self) -> parquet::errors::Result<bool> {
        if self.at == self.len {
            self.refill()?;
        }
        Ok(self.at == self.len)
    }

    /// Levels of the next entry.
    fn peek(&mut self) -> parquet::errors::Result<(i16, i16)> {
        if self.is_at_end()? {
            return Err(general("a column ends before its row group does".to_owned()));
        }
        let def = if self.max_def > 0 { self.defs[self.at] } else { 0 };
        let rep = if self.max_rep > 0 { self.reps[self.at] } else { 0 };
        Ok((def, rep))
    }

    /// Takes the next entry; null if it has no value.
    fn next(&mut self) -> parquet::errors::Result<Value> {
        let (def, _) = self.peek()?;
        self.at += 1;
        if def < self.max_def {
            return Ok(Value::Null);
        }
        self.values.next().ok_or_else(|| general("a column has fewer values than levels".to_owned()))
    }

    fn refill(&mut self) -> parquet::errors::Result<()> {
        self.defs.clear();
        self.reps.clear();
        let (values, len) = read_batch(&mut self.reader, &mut self.defs, &mut self.reps, self.kind)?;
        let is_short = |levels: &[i16], max: i16| max > 0 && levels.len() < len;
        if is_short(&self.defs, self.max_def) || is_short(&self.reps, self.max_rep) {
            return Err(general("a column has fewer levels than it says".to_owned()));
        }
        (self.values, self.at, self.len) = (values.into_iter(), 0, len);
        Ok(())
    }
}

fn skip_records(reader: &mut ColumnReader, rows: usize) -> parquet::errors::Result<usize> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int96ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => reader.skip_records(rows),
    }
}

/// Values of the next records, and how many levels they have.
fn read_batch(
    reader: &mut ColumnReader,
    defs: &mut Vec<i16>,
    reps: &mut Vec<i16>,
    kind: Kind,
) -> parquet::errors::Result<(Vec<Value>, usize)> {
    macro_rules! read {
        ($reader:ident, $value:expr) => {{
            let mut values = Vec::new();
            let (_, _, levels) = $reader.read_records(BATCH, Some(defs), Some(reps), &mut values)?;
            let value = $value;
            Ok((
                values.into_iter().map(|v| if kind == Kind::Opaque { Value::Null } else { value(v) }).collect(),
                levels,
            ))
        }};
    }
    let is_unsigned = kind == Kind::Unsigned;
    match reader {
        ColumnReader::BoolColumnReader(reader) => read!(reader, Value::Bool),
        ColumnReader::Int32ColumnReader(reader) => {
            read!(reader, |v: i32| if is_unsigned { Value::from(v as u32) } else { Value::from(v) })
        }
        ColumnReader::Int64ColumnReader(reader) => {
            read!(reader, |v: i64| if is_unsigned { Value::from(v as u64) } else { Value::from(v) })
        }
        ColumnReader::Int96ColumnReader(reader) => read!(reader, |_| Value::Null),
        ColumnReader::FloatColumnReader(reader) => read!(reader, |v: f32| Value::from(f64::from(v))),
        ColumnReader::DoubleColumnReader(reader) => read!(reader, |v: f64| Value::from(v)),
        ColumnReader::ByteArrayColumnReader(reader) => read!(reader, |v: ByteArray| text(v.data())),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            read!(reader, |v: parquet::data_type::FixedLenByteArray| text(v.data()))
        }
    }
}

fn text(bytes: &[u8]) -> Value {
    std::str::from_utf8(bytes).map_or(Value::Null, Value::from)
}

fn general(reason: String) -> ParquetError {
    ParquetError::General(reason)
}
