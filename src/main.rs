use std::process::ExitCode;

fn main() -> ExitCode {
    // Before the first connection rustls wants to know whose cryptography to
    // use; only an earlier call could make this one fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    serin::cli::main()
}
