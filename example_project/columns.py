"""What the columns of the tables mean: Dagster shows it on the pages of the assets, and the tables keep it."""

from collections.abc import Mapping

import dagster as dg

from example_project import features

_FLIGHT: Mapping[str, str] = {
    "time_hour": "The scheduled hour of departure, in UTC.",
    "carrier": "The code of the airline; see the table airlines.",
    "flight": "The number of the flight.",
    "tailnum": "The tail number of the plane; see the table planes. Missing for some flights.",
    "origin": "The airport of departure, EWR, JFK or LGA; see the table airports.",
    "dest": "The airport of arrival.",
    "arr_delay": "Minutes after the scheduled arrival; negative when early, missing when the flight did not arrive.",
}
_DAY: Mapping[str, str] = {
    "year": "The year, in New York's calendar.",
    "month": "The month, 1 to 12.",
    "day": "The day of the month.",
    "hour": "The hour.",
}
_DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "flights": {
        **_FLIGHT,
        **_DAY,
        "dep_time": "The departure, as hours and minutes, such as 517; missing when the flight was cancelled.",
        "sched_dep_time": "The scheduled departure, as hours and minutes.",
        "dep_delay": "Minutes after the scheduled departure; negative when early.",
        "arr_time": "The arrival, as hours and minutes, in the time zone of the destination.",
        "sched_arr_time": "The scheduled arrival, as hours and minutes.",
        "air_time": "Minutes in the air.",
        "distance": "Miles between the airports.",
        "minute": "The minute of the scheduled departure.",
    },
    "weather": {
        **_DAY,
        "origin": "The airport where it was measured.",
        "time_hour": "The hour, in UTC.",
        "temp": "The temperature, in degrees Fahrenheit.",
        "dewp": "The dew point, in degrees Fahrenheit.",
        "humid": "The relative humidity, in percent.",
        "wind_dir": "The direction of the wind, in degrees.",
        "wind_speed": "The speed of the wind, in miles an hour; missing where the source has an impossible reading.",
        "wind_gust": "The speed of gusts, in miles an hour.",
        "precip": "Precipitation, in inches.",
        "pressure": "The pressure at sea level, in millibars.",
        "visib": "The visibility, in miles.",
    },
    "airlines": {"carrier": "The code of the airline.", "name": "Its name."},
    "airports": {
        "faa": "The FAA code of the airport.",
        "name": "Its name.",
        "lat": "The latitude, in degrees.",
        "lon": "The longitude, in degrees.",
        "alt": "The altitude, in feet.",
        "tz": "Hours from UTC in winter.",
        "dst": "The rule of daylight saving time: A as in the United States, N for none, U for unknown.",
        "tzone": "The name of the time zone.",
    },
    "planes": {
        "tailnum": "The tail number.",
        "year": "The year of manufacture; missing for some planes.",
        "type": "The type of the plane.",
        "manufacturer": "The manufacturer.",
        "model": "The model.",
        "engines": "The number of engines.",
        "seats": "The number of seats.",
        "speed": "The cruising speed, in miles an hour; missing for most planes.",
        "engine": "The type of the engines.",
    },
    "flight_features": {
        **_FLIGHT,
        features.VECTOR: "What was known about the flight before it left: sixteen numbers, scaled to about one.",
    },
    "training_set": {
        **{name: _FLIGHT[name] for name in ("time_hour", "carrier", "origin", "dest")},
        "late": f"Whether the flight arrived more than {features.LATE_MINUTES} minutes late.",
        features.VECTOR: "The features of the flight, as in the table flight_features.",
    },
}


def column_schema(table: str) -> dict[str, dg.TableSchema]:
    """Return the metadata of an asset that describes the columns of its table."""
    columns = [dg.TableColumn(name, description=text) for name, text in _DESCRIPTIONS[table].items()]
    return {"dagster/column_schema": dg.TableSchema(columns)}
