//! The `config.json` of a folder that is written, from the one that was read.

use serde_json::{Map, Value as Json};
use tensor::DType;

/// `base` with `updates` laid over it, naming `dtype` as the type of the weights.
///
/// The type goes under the key the base uses: `torch_dtype`, or `dtype` in folders of recent writers. A description of
/// quantised weights is dropped, since the written weights are not quantised.
pub fn hugging_face_config(base: &Map<String, Json>, updates: &Map<String, Json>, dtype: DType) -> Map<String, Json> {
    let mut config = base.clone();
    config.shift_remove("quantization_config");
    for (key, value) in updates {
        config.insert(key.clone(), value.clone());
    }
    let name = match dtype {
        DType::F32 => "float32",
        DType::Bf16 => "bfloat16",
        DType::I32 => "int32",
        DType::U8 => "uint8",
    };
    let recent = config.contains_key("dtype");
    if recent {
        config.insert("dtype".into(), name.into());
    }
    if !recent || config.contains_key("torch_dtype") {
        config.insert("torch_dtype".into(), name.into());
    }
    config
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Json) -> Map<String, Json> {
        let Json::Object(map) = value else { panic!("not a JSON object: {value}") };
        map
    }

    #[test]
    fn the_written_type_is_named_under_the_key_in_use() {
        let none = Map::new();
        let old = hugging_face_config(&map(json!({"torch_dtype": "float32", "x": 1})), &none, DType::Bf16);
        assert_eq!(Json::Object(old), json!({"torch_dtype": "bfloat16", "x": 1}));
        let recent = hugging_face_config(&map(json!({"dtype": "float16"})), &none, DType::F32);
        assert_eq!(Json::Object(recent), json!({"dtype": "float32"}));
        let neither = hugging_face_config(&none, &none, DType::F32);
        assert_eq!(Json::Object(neither), json!({"torch_dtype": "float32"}));
    }

    #[test]
    fn updates_win_and_quantisation_goes() {
        let base = map(json!({"tie_word_embeddings": true, "quantization_config": {"bits": 4}}));
        let updates = map(json!({"tie_word_embeddings": false}));
        let config = hugging_face_config(&base, &updates, DType::F32);
        assert_eq!(Json::Object(config), json!({"tie_word_embeddings": false, "torch_dtype": "float32"}));
    }
}
