//! How statements are declared, on both databases: each once, with the type of its rows; and rows whose columns are named
//! and read in one place. Knows no database. A test on each database prepares every declared statement and checks that it
//! returns the columns of its row type, by name and in order.

use std::marker::PhantomData;
use std::ops::Deref;

/// A statement, filled in, and the type of the rows that it returns.
#[derive(Debug)]
pub(crate) struct Statement<R = ()> {
    text: Box<str>,
    rows: PhantomData<fn() -> R>,
}

impl<R: Columns> Statement<R> {
    /// A statement whose `{columns}` are those of its rows.
    pub(crate) fn new(text: &str) -> Self {
        Self { text: text.replace("{columns}", &R::list()).into(), rows: PhantomData }
    }
}

impl<R> Deref for Statement<R> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// The columns of a row, in the order in which it is read.
pub(crate) trait Columns {
    /// How many there are.
    const COUNT: usize;

    /// Their names; `None` where any name will do.
    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>>;

    /// The columns as SELECT and RETURNING list them, for `{columns}` in a statement.
    fn list() -> String;
}

/// A statement without rows.
impl Columns for () {
    const COUNT: usize = 0;

    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>> {
        Vec::new()
    }

    fn list() -> String {
        String::new()
    }
}

/// The only column of a row, whatever its name.
#[derive(Debug)]
pub(crate) struct Only<T>(pub(crate) T);

impl<T> Columns for Only<T> {
    const COUNT: usize = 1;

    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>> {
        vec![None]
    }

    fn list() -> String {
        String::new()
    }
}

/// Two rows side by side.
impl<A: Columns, B: Columns> Columns for (A, B) {
    const COUNT: usize = A::COUNT + B::COUNT;

    #[cfg(test)]
    fn names() -> Vec<Option<&'static str>> {
        [A::names(), B::names()].concat()
    }

    fn list() -> String {
        format!("{}, {}", A::list(), B::list())
    }
}

impl<S, A: FromRow<S>, B: FromRow<S>> FromRow<S> for (A, B) {
    fn read(row: &S, at: usize) -> crate::Result<Self> {
        Ok((A::read(row, at)?, B::read(row, at + A::COUNT)?))
    }
}

/// A row that can be read from a database's row `S`.
pub(crate) trait FromRow<S>: Columns + Sized {
    /// Reads the columns from position `at` on.
    ///
    /// # Errors
    /// `Corrupt` when a column holds a value of another type.
    fn read(row: &S, at: usize) -> crate::Result<Self>;
}

/// A statement as tests see it.
#[cfg(test)]
pub(crate) struct Declared<'a> {
    /// The subject and the name: `keys.put`.
    pub(crate) name: String,
    pub(crate) text: &'a str,
    pub(crate) columns: Vec<Option<&'static str>>,
}

#[cfg(test)]
impl<R: Columns> Statement<R> {
    pub(crate) fn declared(&self, name: &str) -> Declared<'_> {
        Declared { name: name.to_owned(), text: &self.text, columns: R::names() }
    }
}

/// Declares a struct whose fields are the columns of a row. `{columns}` in a statement lists them by their names, or as the
/// SQL after `=`. A statement that does not use `{columns}` has to return columns of these names in this order.
///
/// `row! { (SOURCE, READ) struct Name { field: Type, other: Type = "sql", } }`, where `READ(&SOURCE, position)` reads one
/// column. Each database has a macro of its own that fills in the first two.
macro_rules! row {
    (
        ($source:ty, $read:path)
        $(#[$meta:meta])* $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field:ident: $type:ty $(= $sql:expr)?,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$field_meta])* $vis $field: $type,)*
        }

        impl $crate::sql::Columns for $name {
            const COUNT: usize = [$(stringify!($field)),*].len();

            #[cfg(test)]
            fn names() -> Vec<Option<&'static str>> {
                vec![$(Some(stringify!($field))),*]
            }

            fn list() -> String {
                [$($crate::sql::column!($field $(, $sql)?)),*].join(", ")
            }
        }

        impl $crate::sql::FromRow<$source> for $name {
            fn read(row: &$source, at: usize) -> $crate::Result<Self> {
                let mut positions = at..;
                $(let $field = $read(row, positions.next().unwrap_or_default())?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// A column as a statement lists it.
macro_rules! column {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident, $sql:expr) => {
        concat!($sql, " AS ", stringify!($field))
    };
}

/// Declares the statements of a subject: a struct with a [`Statement`] for each; `new`, given a function that fills in
/// what they have in common; and `all`, for tests over every one.
macro_rules! statements {
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident {
            $($(#[$doc:meta])* $statement:ident $(: $row:ty)? = $text:expr;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        $vis struct $name {
            $($(#[$doc])* $vis $statement: $crate::sql::Statement$(<$row>)?,)*
        }

        impl $name {
            $vis fn new(fill: impl Fn(&str) -> String) -> Self {
                let _ = &fill;
                Self { $($statement: $crate::sql::Statement::new(&fill($text)),)* }
            }

            #[cfg(test)]
            $vis fn all(&self) -> Vec<$crate::sql::Declared<'_>> {
                vec![$(self.$statement.declared(stringify!($statement))),*]
            }
        }
    };
}

/// Declares all subjects of a database: a struct with the statements of each.
macro_rules! subjects {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$doc:meta])* $subject:ident: $type:ty,)* }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$doc])* $vis $subject: $type,)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl $name {
            /// Fills in what statements have in common.
            $vis fn filled(fill: impl Fn(&str) -> String) -> Self {
                Self { $($subject: <$type>::new(&fill),)* }
            }

            #[cfg(test)]
            $vis fn all(&self) -> Vec<$crate::sql::Declared<'_>> {
                let mut all = Vec::new();
                $(for mut declared in self.$subject.all() {
                    declared.name = format!("{}.{}", stringify!($subject), declared.name);
                    all.push(declared);
                })*
                all
            }
        }
    };
}

pub(crate) use {column, row, statements, subjects};

#[cfg(test)]
mod tests {
    use super::*;

    type Fields = Vec<i64>;

    fn field<T: TryFrom<i64>>(row: &Fields, at: usize) -> crate::Result<T> {
        let value = row.get(at).ok_or_else(|| crate::Error::new(crate::ErrorKind::Corrupt, "no such column"))?;
        T::try_from(*value).map_err(|_| crate::Error::new(crate::ErrorKind::Corrupt, "another type"))
    }

    row! {
        (Fields, field)
        /// A pair.
        struct Pair {
            id: i64,
            count: u8 = "count(*)",
        }
    }

    statements! {
        /// Some statements.
        struct Some {
            /// Rows.
            pairs: Pair = "SELECT {columns} FROM {ns}.t";
            /// A count.
            count: Only<u8> = "SELECT count(*) FROM {ns}.t";
            /// None.
            touch = "UPDATE {ns}.t SET a = a";
        }
    }

    #[test]
    fn columns_are_listed_in_the_order_in_which_they_are_read() {
        let some = Some::new(|text| text.replace("{ns}", "n"));
        assert_eq!(&*some.pairs, "SELECT id, count(*) AS count FROM n.t");
        assert_eq!(&*some.count, "SELECT count(*) FROM n.t");
        let declared = some.all();
        assert_eq!((declared[2].name.as_str(), declared[2].text), ("touch", "UPDATE n.t SET a = a"));
        assert_eq!(declared[0].columns, [Some("id"), Some("count")]);
        assert_eq!((&declared[1].columns, declared[2].columns.len()), (&vec![None], 0));
        let pair = Pair::read(&vec![9, 1, 2], 1).unwrap();
        assert_eq!((pair.id, pair.count), (1, 2));
        let (first, second) = <(Pair, Pair)>::read(&vec![1, 2, 3, 4], 0).unwrap();
        assert_eq!((first.id, first.count, second.id, second.count), (1, 2, 3, 4));
        assert!(Pair::read(&vec![1, 1_000], 0).is_err() && Pair::read(&vec![1], 0).is_err());
    }
}
