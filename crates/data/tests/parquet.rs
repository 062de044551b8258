//! Parquet files against the same rows as JSON: files that another program wrote, and laws on files made here.
#![cfg(feature = "parquet")]

use std::path::{Path, PathBuf};

use data::source::{DataFiles, SourceConfig};
use data::{Result, Rows};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet_files").join(name)
}

/// Places and rows of a file.
fn read(source: &str, path: &Path, split: &str) -> Result<Vec<(String, Value)>> {
    let config = SourceConfig {
        source: source.to_owned(),
        data_files: Some(DataFiles::Train(vec![path.display().to_string()])),
        split: split.to_owned(),
        ..SourceConfig::default()
    };
    let mut rows = Vec::new();
    Rows::open(&config)?.for_each(|row| {
        rows.push((row.place().to_string(), Value::Object(row.columns().clone())));
        Ok(())
    })?;
    Ok(rows)
}

fn values(rows: Vec<(String, Value)>) -> Vec<Value> {
    rows.into_iter().map(|(_, row)| row).collect()
}

#[test]
fn files_of_another_program_hold_the_rows_they_should() {
    let expected = values(read("json", &file("rows.jsonl"), "train").unwrap());
    assert_eq!(expected.len(), 40);
    for name in ["snappy.parquet", "zstd_v2.parquet", "gzip_plain.parquet", "none_delta.parquet"] {
        let found = values(read("parquet", &file(name), "train").unwrap());
        assert_eq!(found.len(), expected.len(), "{name}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{name}, row {index}");
        }
    }
}

#[test]
fn columns_keep_their_order_and_old_lists_are_read() {
    let found = values(read("parquet", &file("old_lists.parquet"), "train").unwrap());
    let expected = values(read("json", &file("rows.jsonl"), "train").unwrap());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.as_object().unwrap().keys().collect::<Vec<_>>(), ["instruction", "messages"]);
        assert_eq!(found["messages"], expected["messages"]);
    }
}

#[test]
fn slices_begin_inside_of_row_groups() {
    let path = file("snappy.parquet");
    let all = read("parquet", &path, "train").unwrap();
    assert_eq!(all[17].0, format!("`{}`, row 18", path.display()));
    for (split, range) in
        [("train[17:33]", 17..33), ("train[15:30]", 15..30), ("train[39:]", 39..40), ("train[:1]", 0..1)]
    {
        assert_eq!(read("parquet", &path, split).unwrap(), all[range], "{split}");
    }
}

#[test]
fn a_wrong_row_would_be_seen() {
    let expected = values(read("json", &file("rows.jsonl"), "train").unwrap());
    assert_ne!(values(read("parquet", &file("snappy.parquet"), "train[1:]").unwrap()), expected[..39]);
}

#[test]
fn files_that_are_no_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    for bytes in [&b""[..], b"PAR1", b"instruction,output\n1,2\n", b"PAR1\xff\xff\xff\x7fPAR1"] {
        std::fs::write(&path, bytes).unwrap();
        let error = read("parquet", &path, "train").unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot read `{}` as Parquet\n  ", path.display())), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}

/// What a column, or a part of one, holds.
#[derive(Debug, Clone)]
enum Shape {
    Int,
    Text,
    Optional(Box<Shape>),
    List(Box<Shape>),
    Struct(Vec<(&'static str, Shape)>),
}

use Shape::{Int, List, Optional, Struct, Text};

impl Shape {
    /// Its declaration in a schema.
    fn declare(&self, name: &str, repetition: &str) -> String {
        match self {
            Int => format!("{repetition} int32 {name};"),
            Text => format!("{repetition} binary {name} (STRING);"),
            Optional(inner) => inner.declare(name, "optional"),
            List(inner) => {
                let element = inner.declare("element", "required");
                format!("{repetition} group {name} (LIST) {{ repeated group list {{ {element} }} }}")
            }
            Struct(fields) => {
                let fields: String = fields.iter().map(|(name, shape)| shape.declare(name, "required")).collect();
                format!("{repetition} group {name} {{ {fields} }}")
            }
        }
    }

    fn leaves(&self) -> usize {
        match self {
            Int | Text => 1,
            Optional(inner) | List(inner) => inner.leaves(),
            Struct(fields) => fields.iter().map(|(_, shape)| shape.leaves()).sum(),
        }
    }

    /// Any value of this shape.
    fn value(&self) -> BoxedStrategy<Value> {
        match self {
            Int => any::<i32>().prop_map(Value::from).boxed(),
            Text => "[a-z\u{e9}]{0,3}".prop_map(Value::from).boxed(),
            Optional(inner) => prop_oneof![1 => Just(Value::Null), 3 => inner.value()].boxed(),
            List(inner) => proptest::collection::vec(inner.value(), 0..4).prop_map(Value::from).boxed(),
            Struct(fields) => {
                let values: Vec<_> =
                    fields.iter().map(|(name, shape)| (Just((*name).to_owned()), shape.value())).collect();
                values.prop_map(|fields| Value::Object(Map::from_iter(fields))).boxed()
            }
        }
    }

    /// Writes a value into its columns, by definition and repetition levels.
    fn shred(&self, value: Option<&Value>, def: i16, rep: i16, depth: i16, columns: &mut [Column]) {
        match (self, value) {
            (Int | Text, value) => columns[0].push(value, def, rep),
            (Optional(inner), None | Some(Value::Null)) => inner.shred(None, def, rep, depth, columns),
            (Optional(inner), value) => inner.shred(value, def + 1, rep, depth, columns),
            (List(inner), Some(Value::Array(elements))) if !elements.is_empty() => {
                for (index, element) in elements.iter().enumerate() {
                    inner.shred(Some(element), def + 1, if index == 0 { rep } else { depth + 1 }, depth + 1, columns);
                }
            }
            (List(inner), _) => inner.shred(None, def, rep, depth, columns),
            (Struct(fields), value) => {
                let mut rest = columns;
                for (name, shape) in fields {
                    let (own, others) = rest.split_at_mut(shape.leaves());
                    shape.shred(value.map(|value| &value[name]), def, rep, depth, own);
                    rest = others;
                }
            }
        }
    }
}

/// Entries of one leaf.
#[derive(Default)]
struct Column {
    values: Vec<Value>,
    defs: Vec<i16>,
    reps: Vec<i16>,
}

impl Column {
    fn push(&mut self, value: Option<&Value>, def: i16, rep: i16) {
        self.values.extend(value.cloned());
        self.defs.push(def);
        self.reps.push(rep);
    }
}

/// Writes rows of one column `c`, so many a row group.
fn write(path: &Path, shape: &Shape, rows: &[Value], rows_per_group: usize) {
    let schema = format!("message rows {{ {} }}", shape.declare("c", "required"));
    let schema = std::sync::Arc::new(parse_message_type(&schema).unwrap());
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).set_data_page_row_count_limit(3);
    let properties = std::sync::Arc::new(properties.set_write_batch_size(2).build());
    let mut writer = SerializedFileWriter::new(std::fs::File::create(path).unwrap(), schema, properties).unwrap();
    for rows in rows.chunks(rows_per_group) {
        let mut columns: Vec<Column> = (0..shape.leaves()).map(|_| Column::default()).collect();
        for row in rows {
            shape.shred(Some(row), 0, 0, 0, &mut columns);
        }
        let mut group = writer.next_row_group().unwrap();
        for column in columns {
            let mut out = group.next_column().unwrap().unwrap();
            let (defs, reps) = (Some(&column.defs[..]), Some(&column.reps[..]));
            if let parquet::column::writer::ColumnWriter::Int32ColumnWriter(_) = out.untyped() {
                let values: Vec<i32> = column.values.iter().map(|v| v.as_i64().unwrap() as i32).collect();
                out.typed::<Int32Type>().write_batch(&values, defs, reps).unwrap();
            } else {
                let values: Vec<ByteArray> = column.values.iter().map(|v| v.as_str().unwrap().into()).collect();
                out.typed::<ByteArrayType>().write_batch(&values, defs, reps).unwrap();
            }
            out.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn optional(inner: Shape) -> Shape {
    Optional(Box::new(inner))
}

fn list(inner: Shape) -> Shape {
    List(Box::new(inner))
}

fn shapes() -> Vec<Shape> {
    vec![
        Int,
        optional(Text),
        list(Int),
        optional(list(optional(Text))),
        list(Struct(vec![("role", Text), ("content", optional(Text))])),
        optional(list(optional(list(list(optional(Int)))))),
        Struct(vec![
            ("a", list(Int)),
            ("b", optional(Struct(vec![("x", optional(list(Text))), ("y", Int)]))),
            ("c", Text),
        ]),
        list(optional(Struct(vec![("deep", optional(list(Struct(vec![("z", list(Int)), ("w", optional(Int))]))))]))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_reads_back(
        (shape, rows) in proptest::sample::select(shapes()).prop_flat_map(|shape| {
            let rows = proptest::collection::vec(shape.value(), 1..12);
            (Just(shape), rows)
        }),
        rows_per_group in 1..7usize,
        skip in 0..12usize,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        write(&path, &shape, &rows, rows_per_group);
        let skip = skip.min(rows.len() - 1);
        let found = values(read("parquet", &path, &format!("train[{skip}:]")).unwrap());
        let expected: Vec<Value> = rows[skip..].iter().map(|row| json!({"c": row})).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_broken_file_is_an_error_or_other_rows(
        name in proptest::sample::select(vec!["snappy.parquet", "zstd_v2.parquet", "gzip_plain.parquet", "none_delta.parquet"]),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(file(name)).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.drain(cut.index(bytes.len())..);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.parquet");
        std::fs::write(&path, bytes).unwrap();
        let _ = read("parquet", &path, "train");
    }
}
