//! Inputs: well-formed ones of a format, with edits.

use proptest::prelude::*;

/// Of one format.
pub struct Corpus {
    pub seeds: Vec<Vec<u8>>,
    /// Words of the format.
    pub words: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Edit {
    Remove,
    /// So many times, doubled each time.
    Repeat(u32),
    Insert(Vec<u8>),
    Replace(Vec<u8>),
}

/// An edit of a part, by its place and length as fractions.
#[derive(Clone, Debug)]
struct Place {
    at: f64,
    length: f64,
    edit: Edit,
}

/// Of an input: responses are read to some limit, which the tests of limits reach.
const MAX_BYTES: usize = 1 << 20;

impl Corpus {
    pub fn new<'a>(
        seeds: impl IntoIterator<Item = &'a [u8]>,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Corpus {
        Corpus {
            seeds: seeds.into_iter().map(<[u8]>::to_vec).collect(),
            words: words.into_iter().map(|word| word.as_bytes().to_vec()).collect(),
        }
    }

    pub fn inputs(&self) -> impl Strategy<Value = Vec<u8>> + use<> {
        let seed = proptest::sample::select(self.seeds.clone());
        let word = prop_oneof![
            6 => proptest::sample::select(self.words.clone()),
            2 => proptest::sample::select(odd_words()),
            1 => proptest::collection::vec(any::<u8>(), 0..12),
            1 => ".{0,20}".prop_map(String::into_bytes),
        ];
        let edit = prop_oneof![
            2 => Just(Edit::Remove),
            1 => (1..14_u32).prop_map(Edit::Repeat),
            4 => word.clone().prop_map(Edit::Insert),
            4 => word.prop_map(Edit::Replace),
        ];
        let length = prop_oneof![Just(0.0), 0.0..0.02, 0.0..0.2, 0.0..1.0];
        let place = (0.0..1.0_f64, length, edit).prop_map(|(at, length, edit)| Place { at, length, edit });
        (seed, proptest::collection::vec(place, 0..8)).prop_map(|(seed, places)| edited(seed, &places))
    }
}

fn edited(mut input: Vec<u8>, places: &[Place]) -> Vec<u8> {
    for Place { at, length, edit } in places {
        let begin = (at * input.len() as f64) as usize;
        let end = (begin + (length * input.len() as f64) as usize).min(input.len());
        match edit {
            Edit::Remove => _ = input.drain(begin..end),
            Edit::Insert(word) => _ = input.splice(begin..begin, word.iter().copied()),
            Edit::Replace(word) => _ = input.splice(begin..end, word.iter().copied()),
            Edit::Repeat(times) => {
                let mut part = input[begin..end].to_vec();
                for _ in 0..*times {
                    if input.len() + 2 * part.len() < MAX_BYTES {
                        part.extend_from_within(..);
                    }
                }
                input.splice(end..end, part);
            }
        }
    }
    input
}

/// Numbers and texts at the edges of what types hold.
fn odd_words() -> Vec<Vec<u8>> {
    let words = [
        "0",
        "-1",
        "1e308",
        "-1e-308",
        "NaN",
        "+Inf",
        "-Inf",
        "18446744073709551615",
        "9223372036854775808",
        "99999999999999999999999999",
        "1e999999999",
        "null",
        "true",
        "\"\"",
        "\u{0}",
        "\u{feff}",
        "é",
        "💥",
        "\\u0000",
        "\\ud800",
        "[",
        "]",
        "{",
        "}",
        "[[[[[[[[",
        "(?:(?:(?:",
        "\n",
        "\r\n",
        "\\",
        "\"",
        "'",
    ];
    words.map(|word| word.as_bytes().to_vec()).to_vec()
}
