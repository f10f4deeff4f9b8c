//! The part of CBOR that Amazon's `rpc-v2-cbor` uses, as JSON.
//!
//! JSON knows neither moments nor two kinds of numbers; which field holds what
//! is known by its name.

use minicbor::data::{IanaTag, Tag, Type};
use minicbor::{Decoder, Encoder};
use serde_json::{Map, Value};

pub fn decode(bytes: &[u8]) -> Value {
    value(&mut Decoder::new(bytes))
}

pub fn encode(value: &Value) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    write(&mut encoder, "", value);
    encoder.into_writer()
}

fn value(decoder: &mut Decoder<'_>) -> Value {
    match decoder.datatype().expect("CBOR") {
        Type::Map | Type::MapIndef => {
            let mut map = Map::new();
            let length = decoder.map().expect("a map");
            while !ended(decoder, length, map.len()) {
                let key = decoder.str().expect("a key").to_owned();
                let inner = value(decoder);
                assert!(map.insert(key, inner).is_none(), "a key twice");
            }
            Value::Object(map)
        }
        Type::Array | Type::ArrayIndef => {
            let mut array = Vec::new();
            let length = decoder.array().expect("an array");
            while !ended(decoder, length, array.len()) {
                array.push(value(decoder));
            }
            Value::Array(array)
        }
        Type::Tag => {
            assert_eq!(decoder.tag().expect("a tag"), Tag::from(IanaTag::Timestamp));
            value(decoder)
        }
        Type::String => decoder.str().expect("a text").into(),
        Type::Bool => decoder.bool().expect("a truth").into(),
        Type::F64 => decoder.f64().expect("a number").into(),
        Type::F32 => f64::from(decoder.f32().expect("a number")).into(),
        Type::Null => {
            decoder.null().expect("nothing");
            Value::Null
        }
        _ => decoder.i64().expect("a whole number").into(),
    }
}

/// Is a list of known or unknown length over?
fn ended(decoder: &mut Decoder<'_>, length: Option<u64>, read: usize) -> bool {
    match length {
        Some(length) => read as u64 == length,
        None if decoder.datatype().expect("CBOR") == Type::Break => {
            decoder.skip().expect("the break");
            true
        }
        None => false,
    }
}

fn write(encoder: &mut Encoder<Vec<u8>>, field: &str, value: &Value) {
    let written = match value {
        Value::Null => encoder.null().map(drop),
        Value::Bool(truth) => encoder.bool(*truth).map(drop),
        Value::String(text) => encoder.str(text).map(drop),
        Value::Number(number) => {
            let number = number.as_f64().expect("a number");
            match field {
                "Timestamps" => {
                    encoder.tag(IanaTag::Timestamp).and_then(|encoder| encoder.f64(number)).map(drop)
                }
                "Values" => encoder.f64(number).map(drop),
                _ => encoder.i64(number as i64).map(drop),
            }
        }
        Value::Array(array) => encoder.array(array.len() as u64).map(drop).map(|()| {
            array.iter().for_each(|inner| write(encoder, field, inner));
        }),
        Value::Object(map) => encoder.map(map.len() as u64).map(drop).map(|()| {
            for (key, inner) in map {
                encoder.str(key).expect("a key");
                write(encoder, key, inner);
            }
        }),
    };
    written.expect("a Vec takes everything");
}
