//! [`SqlValue`]: an SQL value for statements that run on both databases.

use crate::error::{Error, Result};

/// The value of a parameter or of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text, or JSON as text.
    Text(String),
    /// A byte string.
    Bytes(Vec<u8>),
    /// A boolean; stored as 0 or 1 on SQLite.
    Bool(bool),
}

macro_rules! from {
    ($($kind:ty => $variant:ident),*) => {$(
        impl From<$kind> for SqlValue {
            fn from(value: $kind) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from!(i64 => Int, i32 => Int, u32 => Int, i16 => Int, f64 => Float, f32 => Float, String => Text, &str => Text,
      Vec<u8> => Bytes, &[u8] => Bytes, bool => Bool);

impl From<tidegate_core::EntryId> for SqlValue {
    fn from(id: tidegate_core::EntryId) -> Self {
        Self::Int(id.get())
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl SqlValue {
    /// The value as an integer; `None` unless it is an integer or a boolean.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    /// The value as a floating-point number; `None` unless it is a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// The text; `None` unless it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Text(value) = self { Some(value) } else { None }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use rusqlite::types::{ToSqlOutput, Value, ValueRef};

    use super::{Error, Result, SqlValue};

    impl rusqlite::ToSql for SqlValue {
        fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
            Ok(match self {
                Self::Null => ToSqlOutput::Owned(Value::Null),
                Self::Int(value) => ToSqlOutput::Owned(Value::Integer(*value)),
                Self::Float(value) => ToSqlOutput::Owned(Value::Real(*value)),
                Self::Text(value) => ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes())),
                Self::Bytes(value) => ToSqlOutput::Borrowed(ValueRef::Blob(value)),
                Self::Bool(value) => ToSqlOutput::Owned(Value::Integer(i64::from(*value))),
            })
        }
    }

    impl SqlValue {
        pub(crate) fn read_sqlite(row: &rusqlite::Row<'_>) -> Result<Vec<Self>> {
            let mut values = Vec::new();
            for column in 0..row.as_ref().column_count() {
                values.push(match row.get_ref(column)? {
                    ValueRef::Null => Self::Null,
                    ValueRef::Integer(value) => Self::Int(value),
                    ValueRef::Real(value) => Self::Float(value),
                    ValueRef::Text(value) => Self::Text(
                        std::str::from_utf8(value)
                            .map_err(|error| Error::invalid(format!("column {column} is not UTF-8: {error}")))?
                            .to_owned(),
                    ),
                    ValueRef::Blob(value) => Self::Bytes(value.to_vec()),
                });
            }
            Ok(values)
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use bytes::BytesMut;
    use tokio_postgres::types::{FromSql, IsNull, Json, ToSql, Type, to_sql_checked};

    use super::{Error, Result, SqlValue};

    type BoxedError = Box<dyn std::error::Error + Sync + Send>;

    /// Converts to the type that the statement expects, so that a number fits a column of any number type.
    impl ToSql for SqlValue {
        fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, BoxedError> {
            match (self, ty) {
                (Self::Null, _) => Ok(IsNull::Yes),
                (Self::Int(value), &Type::INT2) => i16::try_from(*value)?.to_sql(ty, out),
                (Self::Int(value), &Type::INT4) => i32::try_from(*value)?.to_sql(ty, out),
                (Self::Int(value), &Type::FLOAT8) => (*value as f64).to_sql(ty, out),
                (Self::Int(value), &Type::FLOAT4) => (*value as f32).to_sql(ty, out),
                (Self::Int(value), _) => value.to_sql_checked(ty, out),
                (Self::Float(value), &Type::FLOAT4) => (*value as f32).to_sql(ty, out),
                (Self::Float(value), _) => value.to_sql_checked(ty, out),
                (Self::Text(value), &Type::JSON | &Type::JSONB) => {
                    let json: &serde_json::value::RawValue = serde_json::from_str(value)?;
                    Json(json).to_sql(ty, out)
                }
                (Self::Text(value), _) => value.to_sql_checked(ty, out),
                (Self::Bytes(value), _) => value.to_sql_checked(ty, out),
                (Self::Bool(value), _) => value.to_sql_checked(ty, out),
            }
        }

        fn accepts(_: &Type) -> bool {
            true
        }

        to_sql_checked!();
    }

    /// A column of any known type.
    struct Column(SqlValue);

    impl<'a> FromSql<'a> for Column {
        fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxedError> {
            Ok(Self(match *ty {
                Type::INT2 => i16::from_sql(ty, raw)?.into(),
                Type::INT4 => i32::from_sql(ty, raw)?.into(),
                Type::INT8 => i64::from_sql(ty, raw)?.into(),
                Type::FLOAT4 => f32::from_sql(ty, raw)?.into(),
                Type::FLOAT8 => f64::from_sql(ty, raw)?.into(),
                Type::BOOL => bool::from_sql(ty, raw)?.into(),
                Type::BYTEA => <&[u8]>::from_sql(ty, raw)?.into(),
                Type::JSONB => std::str::from_utf8(raw.get(1..).unwrap_or_default())?.into(),
                Type::JSON => std::str::from_utf8(raw)?.into(),
                _ => <&str>::from_sql(ty, raw)?.into(),
            }))
        }

        fn from_sql_null(_: &Type) -> Result<Self, BoxedError> {
            Ok(Self(SqlValue::Null))
        }

        fn accepts(ty: &Type) -> bool {
            let known = [
                Type::INT2,
                Type::INT4,
                Type::INT8,
                Type::FLOAT4,
                Type::FLOAT8,
                Type::BOOL,
                Type::BYTEA,
                Type::JSONB,
                Type::JSON,
            ];
            known.contains(ty) || <&str as FromSql>::accepts(ty)
        }
    }

    impl SqlValue {
        pub(crate) fn read_postgres(row: &tokio_postgres::Row) -> Result<Vec<Self>> {
            let read = |column: usize| {
                row.try_get::<_, Column>(column).map(|value| value.0).map_err(|error| {
                    let name = row.columns().get(column).map_or("", tokio_postgres::Column::name);
                    Error::invalid(format!("column {name:?} does not fit SqlValue: cast it to a number or text"))
                        .with_source(error)
                })
            };
            (0..row.len()).map(read).collect()
        }
    }
}
