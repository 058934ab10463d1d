//! Ids that are UUIDs: their bytes, and their text with hyphens.

/// Implements creation, bytes and text of an id that wraps a `Uuid`.
macro_rules! uuid_id {
    ($id:ident) => {
        impl $id {
            /// Returns a new, unique id. Ids sort by their creation time (UUID version 7).
            #[must_use]
            pub fn fresh() -> Self {
                $id(uuid::Uuid::now_v7())
            }

            /// Returns the 16 bytes of the id.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Returns the id with these 16 bytes.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                $id(uuid::Uuid::from_bytes(bytes))
            }
        }

        impl std::fmt::Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl std::fmt::Debug for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use uuid_id;
