CREATE TABLE region (r_regionkey bigint PRIMARY KEY, r_name text, r_comment text);
CREATE TABLE nation (n_nationkey bigint PRIMARY KEY, n_name text, n_regionkey bigint, n_comment text);
CREATE TABLE supplier (
  s_suppkey bigint PRIMARY KEY, s_name text, s_address text, s_nationkey bigint, s_phone text,
  s_acctbal numeric(15, 2), s_comment text
);
CREATE TABLE customer (
  c_custkey bigint PRIMARY KEY, c_name text, c_address text, c_nationkey bigint, c_phone text,
  c_acctbal numeric(15, 2), c_mktsegment text, c_comment text
);
CREATE TABLE part (
  p_partkey bigint PRIMARY KEY, p_name text, p_mfgr text, p_brand text, p_type text, p_size int,
  p_container text, p_retailprice numeric(15, 2), p_comment text
);
CREATE TABLE partsupp (
  ps_partkey bigint, ps_suppkey bigint, ps_availqty int, ps_supplycost numeric(15, 2), ps_comment text,
  PRIMARY KEY (ps_partkey, ps_suppkey)
);
CREATE TABLE orders (
  o_orderkey bigint PRIMARY KEY, o_custkey bigint, o_orderstatus text, o_totalprice numeric(15, 2),
  o_orderdate date, o_orderpriority text, o_clerk text, o_shippriority int, o_comment text
);
CREATE TABLE lineitem (
  l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber int, l_quantity numeric(15, 2),
  l_extendedprice numeric(15, 2), l_discount numeric(15, 2), l_tax numeric(15, 2), l_returnflag text,
  l_linestatus text, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct text,
  l_shipmode text, l_comment text,
  PRIMARY KEY (l_orderkey, l_linenumber)
);
