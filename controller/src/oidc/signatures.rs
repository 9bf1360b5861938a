//! Signatures of tokens, checked by ring: the one library of cryptography that the rest links, too.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self as ring_signature, RsaParameters, VerificationAlgorithm};

/// Every algorithm that is checked. All are asymmetric: a key that checks a token can't make one.
pub(super) const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// What checks signatures. Nothing here signs.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
        rsa_pub_components_from_public_key: |_| Err(ErrorKind::UnsupportedAlgorithm.into()),
        ec_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        ed_pub_components_from_private_key: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
        compute_digest: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    },
};

/// Installs it for this process. Nothing else in it checks tokens, so whatever is there already is this one.
pub(super) fn install() {
    let _ = RING.install_default();
}

/// How ring checks one algorithm.
#[derive(Clone, Copy)]
enum Check {
    Rsa(&'static RsaParameters),
    Plain(&'static dyn VerificationAlgorithm),
}

const fn check_of(algorithm: Algorithm) -> Option<Check> {
    Some(match algorithm {
        Algorithm::RS256 => Check::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Check::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Check::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Check::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Check::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Check::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Check::Plain(&ring_signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Check::Plain(&ring_signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Check::Plain(&ring_signature::ED25519),
        // Secrets that both sides share, and whatever a later version of the crate adds.
        _ => return None,
    })
}

struct RingVerifier {
    algorithm: Algorithm,
    check: Check,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    // The header names the algorithm, and the author of the token wrote the header.
    let check = check_of(*algorithm).filter(|_| key.family() == algorithm.family());
    let check = check.ok_or(ErrorKind::InvalidAlgorithm)?;
    Ok(Box::new(RingVerifier { algorithm: *algorithm, check, key: key.clone() }))
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let outcome = match (self.check, self.key.kind()) {
            (Check::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                // ring refuses leading zeros, which some issuers write.
                let plain = |number: &[u8]| {
                    let zeros = number.iter().take_while(|byte| **byte == 0).count();
                    number[zeros..].to_vec()
                };
                let key = ring_signature::RsaPublicKeyComponents { n: plain(n), e: plain(e) };
                key.verify(parameters, message, signature)
            }
            (Check::Plain(algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                ring_signature::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        outcome.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jsonwebtoken::crypto::verify;

    /// RFC 7515, appendix A.2: a token that others signed by RS256.
    const RSA_TOKEN: &str = concat!(
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt",
        "cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XO",
        "iZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f",
        "_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDw",
        "usC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWyw",
        "lVmtVrBp0igcN_IoypGlUPQGe77Rw",
    );
    const RSA_MODULUS: &str = concat!(
        "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1",
        "Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpa",
        "SHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4",
        "LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    );
    /// RFC 8037, appendix A.4: a text that others signed by Ed25519.
    const ED_TEXT: &str = concat!(
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-0",
        "9PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
    );
    const ED_KEY: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn holds(text: &str, key: &DecodingKey, algorithm: Algorithm) -> bool {
        install();
        let (message, signature) = text.rsplit_once('.').unwrap();
        verify(signature, message.as_bytes(), key, algorithm).unwrap_or(false)
    }

    #[test]
    fn the_examples_of_the_standards_hold_and_changed_ones_do_not() {
        let rsa = DecodingKey::from_rsa_components(RSA_MODULUS, "AQAB").unwrap();
        let ed = DecodingKey::from_ed_components(ED_KEY).unwrap();

        assert!(holds(RSA_TOKEN, &rsa, Algorithm::RS256));
        assert!(holds(ED_TEXT, &ed, Algorithm::EdDSA));
        assert!(!holds(&RSA_TOKEN.replacen("eyJpc3", "eyJpc2", 1), &rsa, Algorithm::RS256));
        assert!(!holds(RSA_TOKEN, &rsa, Algorithm::RS512));
        assert!(!holds(RSA_TOKEN, &rsa, Algorithm::PS256));
        assert!(!holds(ED_TEXT, &rsa, Algorithm::EdDSA), "a key of another kind");
    }

    #[test]
    fn a_secret_that_both_sides_share_checks_nothing() {
        install();
        let secret = DecodingKey::from_secret(b"secret");

        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            assert!(!ALGORITHMS.contains(&algorithm));
            assert!(verify("c2ln", b"text", &secret, algorithm).is_err());
        }
    }
}
