CREATE SCHEMA PLACE;
CREATE TABLE PLACE.customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE PLACE.orders (
    id bigint PRIMARY KEY, seq bigint, customer int, region text, amount numeric(9, 2), batch int
);
CREATE TABLE PLACE.totals (region text PRIMARY KEY, total numeric, orders bigint, seq bigint);
CREATE TABLE PLACE.audit (batch int, item int, orders bigint, slept text);
