"""What the controllers' log is about, in one table: a new subject is one line here (pure)"""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

from controllerd.access import decide as access_decide
from controllerd.access import records as access_records
from controllerd.access import requests as access_requests
from controllerd.anchors import subject as anchors
from controllerd.placements import decide as placements_decide
from controllerd.placements import records as placements_records
from controllerd.placements import requests as placements_requests
from controllerd.placements.state import PlacementsState
from controllerd.records.subject import Subject, Subjects
from controllerd.replicas import apply, decide, records, requests, state
from controllerd.state import features
from remoting.access import model
from remoting.facts import codec

REPLICAS: Final = Subject(
    "replicas",
    state.ReplicasState(),
    get_args(requests.Request),
    decide.decide,
    apply.apply,
    records.FORMATS,
    state.encode_state,
    state.decode_state,
)
ACCESS: Final = Subject(
    "access",
    model.AccessState(),
    get_args(access_requests.Request),
    access_decide.decide,
    access_records.apply,
    access_records.FORMATS,
    model.encode_state,
    model.decode_state,
)
FEATURES: Final = Subject(
    "features",
    features.Features(),
    (features.RaiseLevel,),
    features.decide,
    features.apply,
    features.FORMATS,
    codec.encode,
    partial(codec.decode, features.Features, exactly=True),
)
PLACEMENTS: Final = Subject(
    "placements",
    PlacementsState(),
    get_args(placements_requests.Request),
    placements_decide.decide,
    placements_records.apply,
    placements_records.FORMATS,
    codec.encode,
    partial(codec.decode, PlacementsState, exactly=True),
)
ANCHORS: Final = Subject(
    "anchors",
    anchors.AnchorsState(),
    (anchors.KeepAnchor,),
    anchors.decide,
    anchors.apply,
    anchors.FORMATS,
    codec.encode,
    partial(codec.decode, anchors.AnchorsState, exactly=True),
)

SUBJECTS: Final[Subjects] = {each.name: each for each in (REPLICAS, ACCESS, FEATURES, PLACEMENTS, ANCHORS)}
