-- Who made an API key, by what never changes: names are not unique, and people are renamed.

alter table noetl.api_key
add column maker_kind text,
add column maker_issuer text,
add column maker_id text,
add constraint api_key_maker_is_whole check (
    num_nulls(maker_kind, maker_issuer, maker_id) in (0, 3)
);

comment on column noetl.api_key.maker_kind is
'Kind, issuer and id of the maker; null for a key of an earlier release, which has a name alone.';
