//! Says where the S3 server of the tests is, and installs it first if need be.

fn main() -> Result<(), String> {
    println!("{}", ramet_store::testing::program()?.display());
    Ok(())
}
