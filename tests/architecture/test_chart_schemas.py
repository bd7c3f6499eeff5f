"""What the charts refuse is what services do not know."""

from scripts import chart_schemas


def test_every_schema_is_made_of_todays_values_and_settings() -> None:
    for chart in (*chart_schemas.CHARTS, chart_schemas.UMBRELLA):
        text = chart_schemas.render_schema(chart)
        file = chart_schemas.HELM / chart / "values.schema.json"
        assert file.read_text() == text, "run `python -m scripts.chart_schemas`"
