//! How the server describes itself and its objects to people and to kubectl:
//! discovery, OpenAPI v3, and tables. Documents are made from the list of
//! resources alone; serving them is somebody else's job.

mod age;

pub use age::human_duration;
pub(crate) use age::since;
