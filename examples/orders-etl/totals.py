"""Read what the workflow has left with Spark: which item brings how much, in all regions."""

from swampstore.pipeline import Tables, places_of, session

SUMS = """
SELECT total.item AS item, count(DISTINCT region) AS regions, sum(total.cents) / 100 AS amount
FROM (
  SELECT attributes:region::string AS region,
         explode(attributes:totals::array<struct<item: string, cents: bigint>>) AS total
  FROM artifacts
  WHERE is_latest AND spec_name = 'totals'
)
GROUP BY total.item
ORDER BY amount DESC
"""

spark = session()
Tables(spark, places_of(".")).artifacts(attributes=True).createOrReplaceTempView("artifacts")
spark.sql(SUMS).show()
