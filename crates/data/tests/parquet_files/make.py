"""Writes the Parquet files beside this script, and rows.jsonl with the same rows: `python make.py`, with pyarrow 26."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
SCHEMA = pa.schema(
    [
        ("instruction", pa.string()),
        ("input", pa.large_string()),
        ("score", pa.float64()),
        ("half", pa.float32()),
        ("id", pa.int64()),
        ("small", pa.uint8()),
        ("big", pa.uint64()),
        ("ok", pa.bool_()),
        ("messages", pa.list_(MESSAGE)),
        ("grid", pa.list_(pa.list_(pa.int32()))),
        ("meta", pa.struct([("tags", pa.list_(pa.string())), ("inner", pa.struct([("a", pa.int16())]))])),
        ("scores", pa.map_(pa.string(), pa.int32())),
        ("raw", pa.binary()),
    ]
)

WORDS = ["alpha", "beta", "gamma \u00e9", "delta\n\"quoted\"", ""]


def row(i):
    messages = [{"role": ["user", "assistant"][j % 2], "content": WORDS[(i + j) % 5] if j != 2 else None} for j in range(i % 4)]
    return {
        "instruction": WORDS[i % 5] + str(i),
        "input": None if i % 3 == 0 else WORDS[(i + 1) % 5],
        "score": None if i % 7 == 0 else i / 8,
        "half": i / 4,
        "id": i * 10_000_000_000 - 5,
        "small": 250 + i % 6,
        "big": 2**64 - 1 - i,
        "ok": None if i % 5 == 4 else i % 2 == 0,
        "messages": None if i % 11 == 10 else messages,
        "grid": [[i, i + 1], [], None, [None, 3]][: i % 5],
        "meta": None if i % 6 == 5 else {"tags": WORDS[: i % 3], "inner": None if i % 4 == 3 else {"a": -i}},
        "scores": {WORDS[j]: j for j in range(i % 3)},
        "raw": WORDS[i % 5].encode(),
    }


ROWS = [row(i) for i in range(40)]
TABLE = pa.Table.from_pylist([{**r, "scores": list(r["scores"].items())} for r in ROWS], schema=SCHEMA)

with open("rows.jsonl", "w", encoding="utf-8") as file:
    for r in ROWS:
        file.write(json.dumps({**r, "raw": r["raw"].decode()}, ensure_ascii=True) + "\n")

pq.write_table(TABLE, "snappy.parquet", compression="snappy", row_group_size=15)
pq.write_table(TABLE, "zstd_v2.parquet", compression="zstd", data_page_version="2.0", version="2.6")
pq.write_table(TABLE, "gzip_plain.parquet", compression="gzip", use_dictionary=False, data_page_size=200)
pq.write_table(TABLE, "none_delta.parquet", compression="none", use_dictionary=False,
               column_encoding={"instruction": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED", "input": "DELTA_LENGTH_BYTE_ARRAY", "half": "BYTE_STREAM_SPLIT"})
pq.write_table(TABLE.select(["instruction", "messages"]), "old_lists.parquet", use_compliant_nested_type=False)
