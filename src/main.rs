use std::process::ExitCode;

/// A reconcile is mostly small pieces of JSON, and a quarter of its time went
/// into the C library's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    serin::tls::install_crypto_provider();
    serin::cli::main()
}
